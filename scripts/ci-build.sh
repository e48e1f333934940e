#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "build": the release build with warnings as errors, into build/release.
source "$(dirname "$0")/common.sh"
build_release
say "the programs are in build/release/bin"
