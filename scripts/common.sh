# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# What the other scripts share; sourced, not run. Leaves the shell in the root of the repository.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"
JOBS=${JOBS:-$(nproc)}
# The system's tools, wherever a user's PATH puts others in front, and sbin, which a plain user lacks.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
# shellcheck disable=SC2034  # used by those that source this
PYTHON=/usr/bin/python3
# A checkout of a user, tested as root with sudo, is not "of dubious ownership".
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=$ROOT
# One cache for all checkouts of a machine. A debugger may then be told another one's folder; ours wins
# with the usual `directory` setting.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*"; }
die() {
  printf '%s: error: %s\n' "$(basename "$0" .sh)" "$*" >&2
  exit 1
}

need_root() {
  [[ $EUID == 0 ]] || die "$1 needs root: run it with sudo"
}

# need_folder FOLDER: a kind of test that is not there is a failure, never a pass.
need_folder() {
  [[ -d $1 ]] || die "$1 is missing: this kind of test cannot be run"
}

# configure NAME OPTION...: makes build/NAME ready for ninja. The output is shown only when it fails.
configure() {
  local dir=build/$1 log
  shift
  mkdir -p "$dir"
  log=$dir/configure.log
  if ! cmake -S . -B "$dir" -G Ninja -DCMAKE_C_COMPILER_LAUNCHER=ccache \
    -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@" >"$log" 2>&1; then
    cat "$log" >&2
    die "cmake cannot configure $dir: its output is above"
  fi
}

# build NAME TARGET...: everything when no target is given.
build() {
  local dir=build/$1
  shift
  ninja -C "$dir" -j "$JOBS" "$@" || die "the build of $dir failed: the compiler's output is above"
}

# The build that the tests and the demo run.
build_release() {
  configure release -DCMAKE_BUILD_TYPE=RelWithDebInfo -DICEBOX_WERROR=ON -DBUILD_TESTING=ON
  build release
}

# run_ctest NAME: the unit tests of build/NAME side by side, then the component tests one at a time
# (they share kernel objects and time what they see).
run_ctest() {
  local failed=0
  say 'unit tests'
  ctest --test-dir "build/$1" -L '^unit$' --no-tests=error --output-on-failure -j "$JOBS" || failed=1
  say 'component tests'
  ctest --test-dir "build/$1" -L '^component$' --no-tests=error --output-on-failure || failed=1
  return "$failed"
}
