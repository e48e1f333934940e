#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs everything that the GPU tests need on a machine that has an NVIDIA driver and nothing else of what Icebox uses.
#
#   tests/gpu/build-kit.sh BUILD_DIR [OUTPUT_DIR | --stage-only]
#
# BUILD_DIR is a finished build. The kit is staged in BUILD_DIR/kit and packed into two archives in OUTPUT_DIR (default
# .kit in the repository, which git ignores). run.py takes either. What is not ours comes from this machine's packages.
set -euo pipefail

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
readonly ROOT
# Where run.py mounts the kit. It is in the run paths because runc runs from a memory file, where $ORIGIN means nothing.
readonly INSTALLED=/opt/icebox/kit
readonly CRIU=/opt/icebox/criu
readonly LIMIT_MIB=60
readonly LIBRARIES=/lib/x86_64-linux-gnu
readonly OURS=(KIT bin/icebox-runc bin/icebox-gpu bin/containerd-shim-icebox-v1 samples images fakes)
readonly PACKAGED=(bin/containerd bin/ctr bin/containerd-shim-runc-v2 bin/runc bin/busybox criu lib xtables)

fail() {
  printf 'build-kit: %s\n' "$*" >&2
  exit 1
}

(($# == 1 || $# == 2)) || fail "usage: build-kit.sh BUILD_DIR [OUTPUT_DIR | --stage-only]"
build=$(realpath "$1")
stage_only=no
if [[ ${2:-} == --stage-only ]]; then
  stage_only=yes
  set -- "$1"
fi
output=$(realpath -m "${2:-$ROOT/.kit}")
stage=$build/kit

need() {
  local path
  for path in "$@"; do
    [[ -e $path ]] || fail "$path is missing: $([[ $path == "$build"* ]] && echo 'build it first' || echo 'scripts/setup.sh')"
  done
}

# place FILE FOLDER...: copies a program or library, and makes it find the libraries that the kit brings.
place() {
  install -m 755 "$(realpath "$1")" "$stage/$2/$(basename "$1")"
}

relocate() {
  patchelf --force-rpath --set-rpath "$INSTALLED/lib" "$stage/$1"
}

programs() {
  need "$build"/bin/{icebox-runc,icebox-gpu,containerd-shim-icebox-v1}
  local program path
  for program in icebox-runc icebox-gpu containerd-shim-icebox-v1; do
    strip -o "$stage/bin/$program" "$build/bin/$program"
  done
  for program in containerd ctr containerd-shim-runc-v2 runc busybox; do
    path=$(PATH=$PATH:/usr/sbin command -v "$program") || fail "$program is missing: scripts/setup.sh"
    place "$path" bin
  done
  relocate bin/runc
  place "$LIBRARIES/libseccomp.so.2" lib
  need "$CRIU/bin/criu"
  cp -a "$CRIU" "$stage/criu"
}

# CRIU locks the container's network with iptables-restore. Which kind works depends on the kernel: run.py tries both.
network_lock() {
  local kind family library
  for kind in nft legacy; do
    place "/usr/sbin/xtables-$kind-multi" xtables
    relocate "xtables/xtables-$kind-multi"
    mkdir "$stage/xtables/$kind"
    for family in iptables ip6tables; do
      cat >"$stage/xtables/$kind/$family-restore" <<-END
				#!/bin/sh
				XTABLES_LIBDIR=$INSTALLED/xtables/plugins exec $INSTALLED/xtables/xtables-$kind-multi $family-restore "\$@"
				END
      chmod 755 "$stage/xtables/$kind/$family-restore"
    done
  done
  for library in libxtables.so.12 libmnl.so.0 libnftnl.so.11 libip4tc.so.2 libip6tc.so.2; do
    place "$LIBRARIES/$library" lib
  done
  mkdir "$stage/xtables/plugins"
  for library in libxt_mark libxt_standard; do
    place "/usr/lib/x86_64-linux-gnu/xtables/$library.so" xtables/plugins
  done
}

samples() {
  local nvcc sample program
  need "$build"/samples/sample-{counter,pattern,multi,busy}
  cp "$build"/samples/sample-{counter,pattern,multi,busy} "$stage/samples/"
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || fail "nvcc is missing: sample-graph and spin need it"
  mkdir -p "$build/gpu-samples"
  for sample in "$ROOT/tests/samples/graph.cu:sample-graph" "$ROOT/tests/gpu/workloads/spin.cu:spin"; do
    program=$build/gpu-samples/${sample#*:}
    [[ $program -nt ${sample%:*} ]] || "$nvcc" -O2 -std=c++17 -cudart static -gencode arch=compute_90,code=sm_90 \
      -Xcompiler -Wall,-static-libstdc++,-static-libgcc -o "$program" "${sample%:*}"
    cp "$program" "$stage/samples/"
  done
  strip "$stage"/samples/*
}

images() {
  local file
  local -a arguments=()
  for file in "$stage"/samples/*; do arguments+=(--program "$file"); done
  # What the real libcuda.so.1 needs of libc, whether a sample links it or not.
  for file in libdl.so.2 librt.so.1 libpthread.so.0 libm.so.6; do
    arguments+=(--file "$LIBRARIES/$file:$LIBRARIES/$file")
  done
  "$ROOT/scripts/make-image.py" --name icebox.local/gpu-samples:latest --output "$stage/images/samples.tar" \
    --external libcuda.so.1 "${arguments[@]}"
  "$ROOT/scripts/make-image.py" --name icebox.local/gpu-busybox:latest --output "$stage/images/busybox.tar"
}

simulated_driver() {
  need "$build"/fakes/{libcuda.so.1,libnvidia-ml.so.1}
  cp "$build"/fakes/{libcuda.so.1,libnvidia-ml.so.1} "$stage/fakes/"
}

describe() {
  local commit
  commit=$(git -C "$ROOT" rev-parse HEAD)
  # What the programs are made of; docs and tests may differ.
  git -C "$ROOT" diff --quiet HEAD -- CMakeLists.txt oci runtime-hooks shim tests/samples || commit+=' and uncommitted changes'
  {
    printf 'commit: %s\n' "$commit"
    printf 'containerd: %s\n' "$(containerd --version | awk '{ print $3 }')"
    printf 'runc: %s\n' "$(PATH=$PATH:/usr/sbin runc --version | awk 'NR == 1 { print $3 }')"
    printf 'criu: %s\n' "$("$CRIU/bin/criu" --version | awk 'NR == 1 { print $2 }')"
  } >"$stage/KIT"
}

# pack NAME PATH...: packs these of the stage into OUTPUT_DIR/NAME.tar.xz, unless that was made of the same bytes.
pack() {
  local name=$1 fingerprint
  shift
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$stage" -cf "$stage.tar" "$@"
  fingerprint=$(sha256sum <"$stage.tar")
  if [[ ! -e $output/$name.tar.xz || $(cat "$build/kit-$name.sum" 2>/dev/null) != "$fingerprint" ]]; then
    xz -T0 -3 <"$stage.tar" >"$output/$name.tar.xz.partial"
    mv "$output/$name.tar.xz.partial" "$output/$name.tar.xz"
    printf '%s\n' "$fingerprint" >"$build/kit-$name.sum"
  fi
  rm "$stage.tar"
}

rm -rf "$stage"
mkdir -p "$stage"/{bin,lib,xtables,samples,images,fakes}
programs
network_lock
samples
images
simulated_driver
describe
if [[ $stage_only == yes ]]; then
  printf 'build-kit: staged in %s\n' "$stage"
  exit 0
fi
mkdir -p "$output"
# Two archives, because packing takes minutes on a small machine and the packages' part seldom changes.
pack packages "${PACKAGED[@]}"
pack icebox "${OURS[@]}"
size=$(cat "$output"/*.tar.xz | wc -c)
((size < LIMIT_MIB << 20)) || fail "$output has $((size >> 20)) MiB, more than $LIMIT_MIB"
printf 'build-kit: %s, %s MiB; unpacked in %s\n' "$output" "$((size >> 20))" "$stage"
sed 's/^/build-kit: /' "$stage/KIT"
