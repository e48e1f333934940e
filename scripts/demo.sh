#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows what Icebox does: a container with state on a GPU is checkpointed, killed, removed and restored.
#
#   scripts/demo.sh
#
# Builds Icebox, starts a private containerd (own folders, socket and namespace; the machine's own one is not
# touched), and drives it with ctr. With an NVIDIA driver that works, it uses the real GPU, else a simulated driver.
# The last line is "demo: OK: ..." or "demo: FAILED: why"; whatever happens, nothing is left behind.
source "$(dirname "$0")/common.sh"

readonly IMAGE=icebox.local/demo:latest
readonly CHECKPOINT=icebox.local/demo-checkpoint:latest
readonly RUNTIME=io.containerd.runc.icebox.v1
readonly REQUESTS=5
readonly BIN=$ROOT/build/release/bin
readonly SAMPLES=$ROOT/build/release/samples
readonly FAKES=$ROOT/build/release/fakes
# Where the simulated driver is inside the container.
readonly CUDA_IN_CONTAINER=/opt/cuda

namespace=icebox-demo-$$ work='' mode='' containerd_pid='' failure='interrupted'
declare -A asked=()

say() { printf 'demo: %s\n' "$*"; }

fail() {
  failure=$*
  exit 1
}

# run WHAT COMMAND...: runs a command quietly; if it fails, the demo fails with what it said.
run() {
  local what=$1 said status=0
  shift
  said=$("$@" 2>&1 </dev/null) || status=$?
  ((status == 0)) || fail "$what: $(tail -n 3 <<<"$said" | paste -sd' ')"
}

ctr_() { ctr --address "$work/containerd.sock" --namespace "$namespace" "$@"; }

# shellcheck disable=SC2317  # called by trap
finish() {
  local status=$?
  trap - EXIT
  set +e
  if [[ -n $containerd_pid ]]; then
    local container
    for container in before after; do
      ctr_ tasks kill --signal KILL "$container"
      wait_for 50 task_stopped "$container"
      ctr_ tasks delete --force "$container"
      ctr_ containers delete "$container"
    done >/dev/null 2>&1
    kill "$containerd_pid" 2>/dev/null
    wait "$containerd_pid" 2>/dev/null
  fi
  if ((status != 0)) && [[ -s $work/containerd.log ]]; then
    say "the last lines of containerd's log:"
    tail -n 15 "$work/containerd.log" | sed 's/^/    /'
  fi
  if [[ -n $work ]]; then
    # By path and never across a mount: a root file system must not be emptied by its removal.
    awk -v work="$work/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
      while read -r mount; do umount --lazy "$mount"; done
    rm -rf --one-file-system -- "$work"
    # runc removes its containers' cgroups, but not the one above them.
    find /sys/fs/cgroup -maxdepth 2 -type d -name "$namespace" -exec rmdir {} + 2>/dev/null
  fi
  if ((status != 0)); then
    say "FAILED: $failure"
    exit 1
  fi
  say "OK: counter ${asked[before]} before the checkpoint, ${asked[after]} after the restore"
  exit 0
}

# wait_for TENTHS COMMAND...: polls until the command succeeds; false when the time is over.
wait_for() {
  local left=$(($1 * 2))
  shift
  until "$@" >/dev/null 2>&1; do
    ((left-- > 0)) || return 1
    sleep 0.05
  done
}

task_stopped() { ! ctr_ tasks ls | grep -Eq "^$1 .*(RUNNING|PAUSED)"; }

pid_of() { ctr_ tasks ls | awk -v id="$1" '$1 == id { print $2 }'; }

# ask CONTAINER N: N requests to the counter, inside the container's network. Sets `token` and `number` from the last
# answer, "counter=N token=HEX pid=N gpu=UUID".
ask() {
  local pid answer libraries=''
  [[ $mode == simulated ]] && libraries=$FAKES
  pid=$(pid_of "$1")
  answer=$(LD_LIBRARY_PATH=$libraries nsenter --net="/proc/$pid/ns/net" "$SAMPLES/sample-counter" \
    --ask 127.0.0.1:9999 "$2" 2>&1) || fail "the counter does not answer: $answer"
  answer=$(tail -n 1 <<<"$answer")
  [[ $answer =~ ^counter=([0-9]+)\ token=([0-9a-f]+)\  ]] || fail "the counter answers nonsense: $answer"
  number=${BASH_REMATCH[1]} token=${BASH_REMATCH[2]}
}

# What the container gets of the host, one argument a line: device nodes, and on a real GPU the driver's libraries.
container_flags() {
  local node library
  if [[ $mode == simulated ]]; then
    printf '%s\n' --device /dev/nvidia0 --env "LD_LIBRARY_PATH=$CUDA_IN_CONTAINER"
    return
  fi
  for node in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do
    [[ ! -c $node ]] || printf '%s\n' --device "$node"
  done
  # libcuda.so.1 and what it loads by itself.
  for library in $(ldconfig -p | awk '/lib(cuda|nvidia-(ptxjitcompiler|gpucomp|nvvm))\.so/ && /64/ { print $NF }'); do
    printf '%s\n' --mount "type=bind,src=$(realpath "$library"),dst=/usr/lib/$(basename "$library"),options=rbind:ro"
  done
}

# A file system namespace of our own: what the demo mounts is gone with it, and in simulated mode /dev gets a node.
prepare_namespace() {
  mkdir -p /run/containerd "$work"/{run,tmp,icebox,dev}
  mount --bind "$work/run" /run/containerd
  if [[ $mode == simulated ]]; then
    mount -t tmpfs -o mode=755,size=1m devices "$work/dev"
    cp -ax /dev/. "$work/dev/"
    rm -rf "$work"/dev/nvidia*
    # The numbers of a character device that CRIU cannot dump, as it cannot dump a GPU.
    mknod -m 666 "$work/dev/nvidia0" c 10 237
    mount --rbind /dev/pts "$work/dev/pts"
    mount -t tmpfs shm "$work/dev/shm"
    mount --rbind "$work/dev" /dev
  fi
}

start_containerd() {
  {
    printf 'state_dir = "%s"\n' "$work/icebox"
    if [[ $mode == simulated ]]; then
      printf 'libcuda = "%s"\nlibnvidia_ml = "%s"\n' "$FAKES/libcuda.so.1" "$FAKES/libnvidia-ml.so.1"
    fi
  } >"$work/icebox.toml"
  cat >"$work/containerd.toml" <<-END
	version = 2
	root = "$work/root"
	state = "$work/state"
	disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
	[grpc]
	  address = "$work/containerd.sock"
	END
  # containerd keeps a checkpoint below the first of XDG_RUNTIME_DIR and TMPDIR that is set.
  env -u XDG_RUNTIME_DIR PATH="$BIN:$PATH" TMPDIR="$work/tmp" ICEBOX_CONFIG="$work/icebox.toml" containerd --config "$work/containerd.toml" \
    >"$work/containerd.log" 2>&1 </dev/null &
  containerd_pid=$!
  wait_for 100 ctr_ version || fail "containerd does not start: $(tail -n 1 "$work/containerd.log")"
}

make_image() {
  local -a files=()
  if [[ $mode == simulated ]]; then
    files=(--file "$FAKES/libcuda.so.1:$CUDA_IN_CONTAINER/libcuda.so.1")
  fi
  run 'making the image' "$PYTHON" scripts/make-image.py --name "$IMAGE" --output "$work/image.tar" \
    --program "$SAMPLES/sample-counter" --external libcuda.so.1 "${files[@]}"
  run 'importing the image' ctr_ images import "$work/image.tar"
}

# The demo itself, inside its own mount namespace.
demo() {
  local token number old_token
  local -a flags
  mode=$1
  work=$(mktemp -d /var/tmp/icebox-demo.XXXXXX)
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  prepare_namespace
  say '[1/6] starting a private containerd'
  start_containerd
  make_image

  say "[2/6] running a counter whose state is in device memory, under $RUNTIME"
  mapfile -t flags < <(container_flags)
  run 'starting the container' ctr_ run --detach --null-io --runtime "$RUNTIME" "${flags[@]}" "$IMAGE" before \
    /bin/sample-counter
  ask before "$REQUESTS"
  asked[before]=$number old_token=$token
  say "      $REQUESTS requests: counter $number, token $token (random, made when it started)"

  say '[3/6] ctr containers checkpoint --task --rw'
  run 'the checkpoint' ctr_ containers checkpoint --task --rw before "$CHECKPOINT"

  say '[4/6] killing and removing the container'
  run 'the kill' ctr_ tasks kill --signal KILL before
  wait_for 100 task_stopped before || fail 'the container does not end'
  run 'the removal of the task' ctr_ tasks delete before
  run 'the removal of the container' ctr_ containers delete before

  say '[5/6] ctr containers restore --rw --live'
  run 'the restore' ctr_ containers restore --rw --live after "$CHECKPOINT"

  say '[6/6] asking the restored container'
  ask after "$REQUESTS"
  asked[after]=$number
  say "      $REQUESTS requests: counter $number, token $token"
  [[ $token == "$old_token" ]] || fail 'the token changed: this is a new start, not the old state'
  ((asked[before] < number && number <= asked[before] + REQUESTS)) ||
    fail "the counter was ${asked[before]}, $REQUESTS requests later it is $number"
}

main() {
  need_root 'the demo (it runs containerd)'
  if [[ ${1:-} == --inside ]]; then
    demo "$2"
    return
  fi
  if (($# > 0)); then die "it takes no arguments (given: $*)"; fi
  scripts/setup.sh
  say "building (build/release)"
  build_release >/dev/null
  local probe
  if probe=$("$BIN/icebox-gpu" --probe 2>&1); then
    say "using this machine's GPU: $(jq -r '"\(.gpus[0].name), driver \(.driver_version)"' <<<"$probe")"
    mode=real
  else
    say "no usable NVIDIA driver on this machine ($(tail -n 1 <<<"$probe")): using the simulated one"
    mode=simulated
  fi
  exec unshare --mount --propagation private "$0" --inside "$mode"
}

main "$@"
