#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Icebox and runs every kind of test that needs no GPU.
#
#   scripts/test.sh             all rows
#   scripts/test.sh unit e2e    some of them
#   scripts/test.sh --list      which there are
#
# A row is a script (scripts/lint.sh, else scripts/ci-<row>.sh) that can be run alone. All rows run, whatever
# happened to the ones before; at the end a table says what each did. Exit status 1 if any failed.
source "$(dirname "$0")/common.sh"

# Row and its time limit in minutes on two cores; running into it is a failure. tests/README.md says
# what each row is for.
readonly ROWS='
build 15
lint 20
unit 8
asan 20
e2e 20
fuzz 8
bench 5
'

all_rows() { awk 'NF { print $1 }' <<<"$ROWS"; }

limit_of() { awk -v row="$1" '$1 == row { print $2 }' <<<"$ROWS"; }

script_of() {
  if [[ $1 == lint ]]; then echo scripts/lint.sh; else echo "scripts/ci-$1.sh"; fi
}

main() {
  local -a rows=("$@") table=()
  local row start status failed=0 begin=$SECONDS outcome
  if [[ ${1:-} == --list ]]; then
    all_rows
    return
  fi
  if ((${#rows[@]} == 0)); then mapfile -t rows < <(all_rows); fi
  for row in "${rows[@]}"; do
    [[ -n $(limit_of "$row") ]] || die "no row $row: there are $(all_rows | paste -sd' ')"
  done
  need_root 'the test suite (it runs containerd, makes cgroups and traces processes)'
  scripts/setup.sh

  for row in "${rows[@]}"; do
    printf '\n===== %s\n' "$row"
    start=$SECONDS status=0
    # SIGINT first: pytest then still takes down what its fixtures started.
    timeout --signal=INT --kill-after=60 "$(limit_of "$row")m" "$(script_of "$row")" </dev/null || status=$?
    case $status in
      0) outcome=ok ;;
      124 | 137) outcome="FAILED (over its $(limit_of "$row") minutes)" ;;
      *) outcome="FAILED (exit status $status)" ;;
    esac
    if [[ $outcome != ok ]]; then failed=$((failed + 1)); fi
    table+=("$(printf '%-8s %4d s  %s' "$row" $((SECONDS - start)) "$outcome")")
  done

  printf '\n===== summary\n'
  printf '%s\n' "${table[@]}"
  printf '%-8s %4d s\n' total $((SECONDS - begin))
  printf 'rows: %d passed, %d failed\n' $((${#rows[@]} - failed)) "$failed"
  return $((failed > 0))
}

main "$@"
