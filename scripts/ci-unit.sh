#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "unit": unit and component tests of the release build.
source "$(dirname "$0")/common.sh"
need_root 'the component tests (they make cgroups and trace processes)'
need_folder tests/unit
need_folder tests/component
build_release
run_ctest release
