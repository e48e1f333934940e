#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CI row "fuzz": every libFuzzer target of tests/fuzz for $ICEBOX_FUZZ_SECONDS (default 10), after its
# committed corpus. With arguments, only those targets: scripts/ci-fuzz.sh ttrpc_frame
source "$(dirname "$0")/common.sh"
need_folder tests/fuzz
seconds=${ICEBOX_FUZZ_SECONDS:-10}

targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/*_fuzz.cc; do
    [[ -e $source ]] || die 'tests/fuzz has no *_fuzz.cc: nothing to run'
    targets+=("$(basename "$source" _fuzz.cc)")
  done
fi
configure fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DICEBOX_FUZZ=ON -DBUILD_TESTING=ON
build fuzz "${targets[@]/%/_fuzz}"

failed=()
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/$target
  if [[ ! -d $corpus || -z $(ls -A "$corpus") ]]; then
    say "$target: FAILED: no seeds in $corpus"
    failed+=("$target")
    continue
  fi
  # What is found on the way goes to the first folder, so that the committed seeds stay as they are.
  found=build/fuzz/found/$target
  mkdir -p "$found" build/fuzz/artifacts
  log=build/fuzz/$target.log
  if "build/fuzz/fuzz/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/artifacts/$target-" "$found" "$corpus" >"$log" 2>&1 &&
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log") && [[ $runs -gt 0 ]]; then
    say "$target: ok, $runs inputs in $seconds s"
  else
    tail -n 40 "$log"
    say "$target: FAILED: the output is in $log, the input in build/fuzz/artifacts"
    failed+=("$target")
  fi
done
((${#failed[@]} == 0)) || die "${#failed[@]} of ${#targets[@]} targets failed: ${failed[*]}"
say "${#targets[@]} targets passed"
