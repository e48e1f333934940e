#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "lint": everything that can be said about the sources without running them.
#
#   scripts/lint.sh                all steps
#   scripts/lint.sh format layers  some of them
#   scripts/lint.sh --fix          lays out the sources as the format step wants them
#
# Steps: format shell python layers text headers tidy. The last two need the release build and make it.
# clang-format and clang-tidy are pinned to one major version, as others judge differently; where it
# cannot be had the step says SKIPPED, and so does the summary.
source "$(dirname "$0")/common.sh"

readonly LLVM_VERSION=14
readonly STEPS=(format shell python layers text headers tidy)

# files PATTERN...: tracked files and new ones that git would not ignore, one a line.
files() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
    while read -r file; do if [[ -f $file ]]; then echo "$file"; fi; done
}

# scripts_of INTERPRETER SUFFIX: files with that suffix, or with a #! line for the interpreter.
scripts_of() {
  # shellcheck disable=SC2016  # awk's own $0
  files | LC_ALL=C xargs -d '\n' awk -v interpreter="^#!.*[/ ]($1)( |\$)" -v suffix="\\.$2\$" \
    'FNR == 1 { if (FILENAME ~ suffix || $0 ~ interpreter) print FILENAME; nextfile }'
}

# pinned TOOL: the name under which the pinned version is installed; fails if it is not.
pinned() {
  local tool
  for tool in "$1-$LLVM_VERSION" "$1"; do
    if command -v "$tool" >/dev/null && [[ $("$tool" --version) =~ version\ $LLVM_VERSION\. ]]; then
      echo "$tool"
      return
    fi
  done
  return 1
}

# Exit status of a step that could not be run here.
readonly SKIPPED=77

sources() { files '*.cc' '*.h' '*.c' '*.cu'; }

step_format() {
  local tool
  tool=$(pinned clang-format) || return "$SKIPPED"
  sources | xargs -d '\n' -P "$JOBS" -n 20 "$tool" --dry-run --Werror 2>&1 |
    awk -F: '/-Wclang-format-violations/ { n[$1]++; next } /error:/ { print; n["?"]++ }
      END { for (file in n) printf "%s: %d places\n", file, n[file]; exit length(n) > 0 }' | sort && return
  echo "lay them out with: scripts/lint.sh --fix" && return 1
}

step_shell() { scripts_of '(ba|da)?sh' sh | xargs -d '\n' shellcheck -x -P SCRIPTDIR; }

step_python() { scripts_of 'python3?' py | xargs -d '\n' "$PYTHON" -m pyflakes; }

step_layers() { "$PYTHON" scripts/check-layers.py --self-test; }

step_text() {
  { sources && files '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' .ci/run; } | sort -u |
    xargs -d '\n' "$PYTHON" scripts/check-text.py
}

step_headers() {
  build_release >build/lint-build.log || { tail -n 30 build/lint-build.log && return 1; }
  "$PYTHON" scripts/check-headers.py build/release "$JOBS"
}

step_tidy() {
  local tool
  tool=$(pinned clang-tidy) || return "$SKIPPED"
  build_release >build/lint-build.log || { tail -n 30 build/lint-build.log && return 1; }
  "$PYTHON" scripts/run-tidy.py "$tool" build/release "$JOBS"
}

main() {
  local step start status
  local -a failed=() skipped=() steps=("$@")
  if [[ ${1:-} == --fix ]]; then
    sources | xargs -d '\n' -n 20 "$(pinned clang-format || die "no clang-format $LLVM_VERSION here")" -i
    return
  fi
  ((${#steps[@]})) || steps=("${STEPS[@]}")
  mkdir -p build
  for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || die "no step $step: there are ${STEPS[*]}"
    start=$SECONDS status=0
    say "== $step"
    # A process of its own: `set -e` does not work in a function called from a condition.
    bash -c 'source scripts/lint.sh --library; "step_$1"' scripts/lint.sh "$step" || status=$?
    case $status in
      0) say "== $step: ok ($((SECONDS - start)) s)" ;;
      "$SKIPPED")
        say "== $step: SKIPPED: this machine has no LLVM $LLVM_VERSION of it"
        skipped+=("$step")
        ;;
      *)
        say "== $step: FAILED ($((SECONDS - start)) s)"
        failed+=("$step")
        ;;
    esac
  done
  ((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
  say "all ok: $((${#steps[@]} - ${#skipped[@]})) steps${skipped[*]:+, skipped: ${skipped[*]}}"
}

if [[ ${1:-} != --library ]]; then main "$@"; fi
