#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "bench": the tests with label "bench" of the release build: budgets of memory and time. One at a
# time, as anything beside them would be measured too.
source "$(dirname "$0")/common.sh"
need_root 'the bench row (it runs the daemon and containers)'
need_folder tests/bench
build_release
ctest --test-dir build/release -L '^bench$' --no-tests=error --output-on-failure
