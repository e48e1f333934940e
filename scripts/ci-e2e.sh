#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "e2e": real containerd, runc and CRIU with a simulated GPU, and the stock shim as oracle.
# Arguments go to pytest: scripts/ci-e2e.sh -k pause -x
source "$(dirname "$0")/common.sh"
need_root 'the end-to-end row (it runs containerd)'
need_folder tests/e2e
build_release
exec "$PYTHON" -m pytest tests/e2e -p no:cacheprovider "$@"
