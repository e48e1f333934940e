#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "asan": unit and component tests under AddressSanitizer and UndefinedBehaviorSanitizer.
source "$(dirname "$0")/common.sh"
need_root 'the component tests (they make cgroups and trace processes)'
need_folder tests/unit
need_folder tests/component
# Warnings are the release build's business: the sanitizers' own code makes g++ see false ones.
configure asan -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-Og -g1' -DCMAKE_C_FLAGS_DEBUG='-Og -g1' \
  -DICEBOX_SANITIZE=address,undefined -DBUILD_TESTING=ON
build asan
export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1:check_initialization_order=1
export UBSAN_OPTIONS=print_stacktrace=1
run_ctest asan
