#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what Icebox is built and tested with, through the distribution's packages, and puts a
# CRIU that works on the running kernel into $ICEBOX_PREFIX/criu (default /opt/icebox/criu).
#
#   scripts/setup.sh               everything: build, tests, CRIU
#   scripts/setup.sh --build-only  only what compiling the product needs
#   scripts/setup.sh --check       changes nothing; says what is missing and exits 1 if anything is
#
# Safe to run again: when nothing is missing it only looks, in well under two seconds. A run that is
# killed or loses the network leaves nothing behind that a later run takes for complete.
#
# CRIU: the one in PATH or in the distribution is used when it is at least $CRIU_WANTED. On a Debian
# whose own is older, the package of a later Debian and the libraries it needs are unpacked below the
# prefix with their own loader, so that the system's libraries stay as they are. Elsewhere install_criu
# says what to do.
#
# Supported: Debian 12 and newer, Ubuntu 22.04 and newer.
set -euo pipefail

# CRIU 4.1 is the oldest the engine works with. Kernel 6.16 made getsockopt(SO_PASSCRED) an error for
# every socket but unix ones, and CRIU before 4.2 gives up on the first IP socket it meets there.
# Where the machine's own Debian is older than that, CRIU comes from the first of these later ones that
# has it.
if [[ $(printf '%s\n' 6.16 "$(uname -r)" | sort -V | head -n 1) == 6.16 ]]; then
  CRIU_WANTED=4.2 CRIU_DONOR_SUITES='forky sid'
else
  CRIU_WANTED=4.1 CRIU_DONOR_SUITES='trixie forky'
fi
readonly CRIU_WANTED CRIU_DONOR_SUITES
readonly PREFIX=${ICEBOX_PREFIX:-/opt/icebox}

# Packages by purpose. A line is "package" or "package command...": with commands, a machine that
# already has all of them, from whatever package, is left alone (docker's containerd.io replaces both
# containerd and runc, for example).
readonly BUILD_PACKAGES='
binutils readelf strip
ccache ccache
cmake cmake
g++ g++
git git
libcap-dev
libprotobuf-dev
libseccomp-dev
libtomlplusplus-dev
libzstd-dev
make make
ninja-build ninja
nlohmann-json3-dev
pkg-config pkg-config
protobuf-compiler protoc
'
readonly TEST_PACKAGES='
busybox-static
ca-certificates
clang clang++
clang-format clang-format
clang-tidy clang-tidy run-clang-tidy
containerd containerd ctr containerd-shim-runc-v2
iproute2 ip
iptables iptables-restore
jq jq
libbenchmark-dev
libgmock-dev
libgtest-dev
patchelf patchelf
procps ps
python3 python3
python3-pyflakes
python3-pytest
runc runc
shellcheck shellcheck
util-linux unshare nsenter flock
zstd zstd
'
# The sanitizer and fuzzer runtimes of clang: a package of their own only in newer releases, so it is
# asked for where it exists, and the result is tested by linking a program.
readonly CLANG_RUNTIME_PACKAGE=libclang-rt-dev

say() { printf 'setup: %s\n' "$*"; }
warn() { printf 'setup: warning: %s\n' "$*" >&2; }
die() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

scratch=
# shellcheck disable=SC2317  # called by trap
cleanup() {
  if [[ -n $scratch ]]; then rm -rf -- "$scratch"; fi
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Sets os_id, os_version and os_codename; ends the run on a distribution this script does not know.
detect_system() {
  os_id=unknown os_version='' os_codename=''
  if [[ -r /etc/os-release ]]; then
    # shellcheck source=/dev/null
    os_id=$(. /etc/os-release && printf %s "${ID:-unknown}")
    # shellcheck source=/dev/null
    os_version=$(. /etc/os-release && printf %s "${VERSION_ID:-}")
    # shellcheck source=/dev/null
    os_codename=$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")
  fi
  local oldest=
  case $os_id in
    debian) oldest=12 ;;
    ubuntu) oldest=22.04 ;;
  esac
  # An empty version is Debian testing or unstable: newer than any number.
  if [[ -n $oldest ]] && command -v apt-get dpkg-query >/dev/null &&
    { [[ -z $os_version ]] || dpkg --compare-versions "$os_version" ge "$oldest"; }; then
    return
  fi
  die "$os_id $os_version is not supported (Debian 12 and newer, Ubuntu 22.04 and newer are):" \
    "install the equivalents of $(package_names "$BUILD_PACKAGES$TEST_PACKAGES" | paste -sd' ')" \
    "and criu >= $CRIU_WANTED by hand, and build with cmake"
}

package_names() { awk 'NF { print $1 }' <<<"$1"; }

# Prints the packages of a list (see BUILD_PACKAGES) that this machine lacks.
missing_packages() {
  local package commands command found installed
  # dpkg-query exits 1 when it does not know one of the names; that is an answer here.
  # shellcheck disable=SC2016  # dpkg-query's own ${...}
  installed=$(package_names "$1" | xargs dpkg-query -W -f '${db:Status-Abbrev}|${Package}\n' \
    2>/dev/null | sed -n 's/^.i.*|//p') || true
  while read -r package commands; do
    [[ -n $package ]] || continue
    if [[ -n $commands ]]; then
      found=yes
      for command in $commands; do
        command -v "$command" >/dev/null || found=no
      done
      [[ $found == no ]] || continue
    fi
    grep -qxF -- "$package" <<<"$installed" || echo "$package"
  done <<<"$1"
}

# Runs apt-get quietly; its output is shown only when it fails. A daemon that a package starts must not
# inherit the lock on descriptor 9.
quiet_apt() {
  local log
  log=$(mktemp)
  if DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y \
    -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@" >"$log" 2>&1 </dev/null 9>&-; then
    rm -f -- "$log"
    return 0
  fi
  sed 's/^/setup: apt-get: /' "$log" | tail -n 25 >&2
  rm -f -- "$log"
  return 1
}

install_packages() {
  local -a wanted=("$@")
  ((${#wanted[@]})) || return 0
  [[ $EUID == 0 ]] || die "not root, and these packages are missing: ${wanted[*]}: run it with sudo"
  say "installing ${#wanted[@]} packages: ${wanted[*]}"
  # The package lists may be absent (an image where apt-get update never ran) or out of date (the
  # mirror no longer has what they name). So: try, refresh once, try again.
  if [[ $(apt-cache policy "${wanted[@]}" 2>/dev/null | grep -c 'Candidate: [^(]') == "${#wanted[@]}" ]] &&
    quiet_apt --no-install-recommends install "${wanted[@]}"; then
    return
  fi
  say 'refreshing the package lists'
  quiet_apt update || die "apt-get update failed: repair the machine's package sources or network, then run this again"
  local package
  for package in "${wanted[@]}"; do
    apt-cache show --no-all-versions "$package" >/dev/null 2>&1 ||
      die "no package $package in this machine's package sources: add the component that has it" \
        "(on Ubuntu: universe), then run this again"
  done
  quiet_apt --no-install-recommends install "${wanted[@]}" ||
    die "apt-get could not install ${wanted[*]}: its last lines are above"
}

# True if clang can link the sanitizer and fuzzer runtimes.
clang_runtimes_work() {
  local dir result=0
  dir=$(mktemp -d)
  printf '#include <cstddef>\n#include <cstdint>\n%s\n' \
    'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t) { return 0; }' >"$dir/t.cc"
  clang++ -fsanitize=fuzzer,address,undefined -o "$dir/t" "$dir/t.cc" >/dev/null 2>&1 || result=1
  rm -rf -- "$dir"
  return "$result"
}

install_clang_runtimes() {
  clang_runtimes_work && return
  if apt-cache show --no-all-versions "$CLANG_RUNTIME_PACKAGE" >/dev/null 2>&1; then
    install_packages "$CLANG_RUNTIME_PACKAGE"
  fi
  clang_runtimes_work ||
    die "clang++ cannot link -fsanitize=fuzzer,address,undefined: install the compiler-rt package of" \
      "$(clang++ --version | head -n 1)"
}

# --- CRIU ------------------------------------------------------------------------------------------

# criu_version BINARY...: prints "4.1.1", or nothing if it does not run.
criu_version() { "$@" --version 2>/dev/null | sed -n 's/^Version: *\([0-9][0-9.]*\).*/\1/p' || true; }

criu_is_new_enough() {
  local version
  version=$(criu_version "$@")
  [[ -n $version ]] && dpkg --compare-versions "$version" ge "$CRIU_WANTED"
}

# criu_works BINARY...: asks CRIU itself whether the running kernel has what it needs. On failure
# prints the last error it gave. Needs root.
criu_works() {
  local output
  output=$("$@" check 2>&1) || true
  if grep -q 'Looks good' <<<"$output"; then return 0; fi
  grep -E 'Error|not' <<<"$output" | tail -n 1
  return 1
}

# The archives that this machine takes its own release from, one address a line, as apt itself reads
# its configuration (one-line and deb822 sources, mirror lists).
own_archives() {
  apt-get update --print-uris 2>/dev/null |
    sed -n "s|^'\(.*\)/dists/${os_codename}/\(In\)\{0,1\}Release' .*|\1|p" | sort -u
}

# signed_by ARCHIVE: the key files that the machine's configuration ties to this archive, separated by
# commas; nothing if it relies on apt's general keys.
signed_by() {
  local -a files=()
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if [[ -r $file ]]; then files+=("$file"); fi
  done
  ((${#files[@]})) || return 0
  awk -v archive="$1" '
    # As apt prints it: no slash at the end, one where a file address has three.
    function plain(uri) { sub(/\/+$/, "", uri); sub(/:\/\/\//, ":/", uri); return uri }
    function emit() { if (uses && keys != "") print keys; uses = 0; keys = "" }
    FNR == 1 { emit(); deb822 = FILENAME ~ /\.sources$/ }
    /^[[:space:]]*#/ { next }
    deb822 && /^[[:space:]]*$/ { emit(); next }
    deb822 && tolower($1) == "uris:" { for (i = 2; i <= NF; i++) if (plain($i) == archive) uses = 1 }
    # A key may also be written out in place; only files are taken over.
    deb822 && tolower($1) == "signed-by:" { for (i = 2; i <= NF; i++) if ($i ~ /^\//) keys = keys (keys == "" ? "" : ",") $i }
    !deb822 && $1 == "deb" && index($0, archive) && match($0, /signed-by=[^] ]+/) {
      print substr($0, RSTART + 10, RLENGTH - 10)
    }
    END { emit() }' "${files[@]}" | tr ',' '\n' | sort -u | paste -sd,
}

# private_apt_config DIR ARCHIVE SUITE: an apt that knows one suite of one archive and an empty machine, so
# that it answers with the complete closure of a package and never touches the real package state. The
# machine's own settings (proxy, credentials, date checks) stay in force, its hooks do not.
private_apt_config() {
  local dir=$1 archive=$2 suite=$3 keys option=''
  mkdir -p "$dir"/{lists/partial,archives/partial,sources.d,preferences.d}
  : >"$dir/status"
  : >"$dir/preferences"
  keys=$(signed_by "$archive")
  # The next release may be signed by newer keys than the ones tied to this release's entry.
  if [[ -n $keys ]]; then
    if [[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
      keys+=,/usr/share/keyrings/debian-archive-keyring.gpg
    fi
    option="[signed-by=$keys] "
  fi
  echo "deb $option$archive $suite main" >"$dir/sources.list"
  cat >"$dir/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Install-Pkgs;
#clear DPkg::Post-Invoke;
Dir::State "$dir";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir";
Dir::Cache::archives "$dir/archives";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "$dir/sources.d";
Dir::Etc::preferences "$dir/preferences";
Dir::Etc::preferencesparts "$dir/preferences.d";
Acquire::Languages "none";
APT::Update::Error-Mode "any";
APT::Install-Recommends "false";
APT::Get::List-Cleanup "false";
CONF
}

# download_donor_criu DIR: puts CRIU's package of the first donor that has it, and all it depends on, into
# DIR/archives.
download_donor_criu() {
  local dir=$1 archive suite candidate archives
  archives=$(own_archives)
  [[ -n $archives ]] ||
    die "criu >= $CRIU_WANTED: no entry for $os_codename in this machine's package sources to take" \
      "the archive's address from: add one, or put a criu >= $CRIU_WANTED in PATH"
  for suite in $CRIU_DONOR_SUITES; do
    while read -r archive; do
      rm -rf -- "$dir"
      private_apt_config "$dir" "$archive" "$suite"
      quiet_apt -c "$dir/apt.conf" update || continue
      candidate=$(apt-cache -c "$dir/apt.conf" policy criu | sed -n 's/^ *Candidate: *//p')
      if [[ -z $candidate || $candidate == '(none)' ]] ||
        ! dpkg --compare-versions "$candidate" ge "$CRIU_WANTED"; then
        continue
      fi
      say "downloading criu $candidate of $suite and its libraries from the machine's own archive"
      quiet_apt -c "$dir/apt.conf" --download-only install criu ||
        die "criu $candidate: the download from $archive failed: run this again when the network is back"
      return
    done <<<"$archives"
  done
  die "criu >= $CRIU_WANTED: none of this machine's package archives serves it in" \
    "${CRIU_DONOR_SUITES// / or } ($(paste -sd' ' <<<"$archives")): make one reachable, or put a" \
    "criu >= $CRIU_WANTED in PATH"
}

# assemble_criu ROOT TARGET: copies criu, its loader and exactly the libraries that this loader
# resolves for it out of the unpacked packages under ROOT into TARGET, for use at $PREFIX/criu. No
# plugin is copied: cuda_plugin would thaw a frozen tree and restore the GPU before its memory is there.
assemble_criu() {
  local root=$1 target=$2 binary loader libraries path
  binary=$(find "$root" -path '*/sbin/criu' -type f | head -n 1)
  [[ -n $binary ]] || die 'the downloaded criu package has no sbin/criu: report this as a bug'
  loader=$(find "$root" -name "$(basename "$(patchelf --print-interpreter "$binary")")" -type f | head -n 1)
  [[ -n $loader ]] || die 'the downloaded libc6 package has no loader: report this as a bug'
  libraries=$(dirname "$loader")
  mkdir -p "$target"/{bin,lib}
  cp -- "$loader" "$target/lib/"
  while read -r path; do
    [[ $path == "$root"/* ]] ||
      die "the downloaded criu needs $path, which its packages do not bring: report this as a bug"
    cp -L -- "$path" "$target/lib/"
  done < <("$loader" --library-path "$libraries" --list "$binary" | awk '$2 == "=>" { print $3 }')
  cp -- "$binary" "$target/bin/criu"
  # Tried before it is tied to the prefix, where the libraries of an older one may still be.
  "$target/lib/$(basename "$loader")" --library-path "$target/lib" "$target/bin/criu" --version >"$target/VERSION" ||
    die "the downloaded criu does not run from its private prefix: report this as a bug"
  # An rpath of the old kind on the program alone covers the libraries' own needs too, and comes before
  # LD_LIBRARY_PATH; the libraries stay as the distribution built them.
  patchelf --set-interpreter "$PREFIX/criu/lib/$(basename "$loader")" \
    --force-rpath --set-rpath "$PREFIX/criu/lib" "$target/bin/criu"
}

# publish_criu DIR: makes a complete DIR the prefix. DIR is on the same file system, so there is never
# a half-filled $PREFIX/criu.
publish_criu() {
  sync -f "$1"
  if [[ -e $PREFIX/criu || -L $PREFIX/criu ]]; then
    mv -T -- "$PREFIX/criu" "$scratch/replaced"
  fi
  chmod 755 "$1"
  mv -T -- "$1" "$PREFIX/criu"
}

# link_criu BINARY: points the prefix to a CRIU installed elsewhere.
link_criu() {
  mkdir -p "$scratch/link/bin"
  ln -s -- "$1" "$scratch/link/bin/criu"
  publish_criu "$scratch/link"
}

install_criu() {
  local criu=$PREFIX/criu/bin/criu candidate existing
  if criu_is_new_enough "$criu"; then return; fi
  [[ $EUID == 0 ]] || die "not root, and criu >= $CRIU_WANTED is not in $PREFIX/criu: run it with sudo"
  mkdir -p "$PREFIX"
  # What a killed run left: nobody else is here, the lock is ours.
  rm -rf -- "$PREFIX"/.criu.*
  scratch=$(mktemp -d "$PREFIX/.criu.XXXXXX")
  # apt downloads as its own user, who has to get through.
  chmod 755 "$scratch"

  candidate=$(apt-cache policy criu 2>/dev/null | sed -n 's/^ *Candidate: *//p')
  existing=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v criu || true)
  if [[ -n $existing ]] && criu_is_new_enough "$existing"; then
    link_criu "$existing"
  elif [[ -n $candidate && $candidate != '(none)' ]] && dpkg --compare-versions "$candidate" ge "$CRIU_WANTED"; then
    install_packages criu
    link_criu "$(PATH=$PATH:/usr/sbin:/sbin command -v criu)"
  elif [[ $os_id == debian ]]; then
    download_donor_criu "$scratch/apt"
    local package
    for package in "$scratch"/apt/archives/*.deb; do
      dpkg-deb -x "$package" "$scratch/root" ||
        die "$(basename "$package"): cannot be unpacked into $PREFIX: is the disk full? run this again"
    done
    assemble_criu "$scratch/root" "$scratch/new"
    publish_criu "$scratch/new"
  else
    die "criu >= $CRIU_WANTED: $os_id $os_version has ${candidate:-none}. Build it: unpack the source" \
      "release criu-$CRIU_WANTED or newer; apt-get install libprotobuf-dev libprotobuf-c-dev" \
      "protobuf-c-compiler protobuf-compiler python3-protobuf libnet1-dev libnl-3-dev libcap-dev" \
      "libbsd-dev libnftables-dev libgnutls28-dev uuid-dev make gcc pkg-config; make criu; install -m 755" \
      "criu/criu /usr/local/sbin/criu; then run this again"
  fi
  criu_is_new_enough "$criu" || die "$criu was installed but does not run: report this as a bug"
  say "criu $(criu_version "$criu") is in $criu"
}

# Things that hold only now and here: the kernel, and programs CRIU runs.
verify_criu() {
  local criu=$PREFIX/criu/bin/criu reason plugin
  if ! command -v iptables-restore >/dev/null && ! command -v nft >/dev/null; then
    die 'criu needs iptables-restore or nft to hold connections still: install iptables or nftables'
  fi
  if [[ $EUID != 0 ]]; then
    warn 'not root: whether criu works on this kernel was not checked'
    return
  fi
  reason=$(criu_works "$criu") ||
    die "$criu $(criu_version "$criu") does not work on kernel $(uname -r): ${reason:-no reason given}:" \
      "run '$criu check' as root outside of any container, or boot a kernel with CONFIG_CHECKPOINT_RESTORE"
  for plugin in "$PREFIX"/criu/lib/*plugin*.so /usr/lib/criu/cuda_plugin.so /usr/lib/*/criu/cuda_plugin.so; do
    if [[ -e $plugin ]]; then
      warn "$plugin exists: icebox keeps its criu away from it, other users of criu do not"
    fi
  done
}

# --- the run ---------------------------------------------------------------------------------------

# What the slow checks depend on. Equal to the stamp's content: they passed in this very state.
state_of_things() {
  # shellcheck disable=SC2016  # dpkg-query's own ${...}
  {
    sha256sum <"${BASH_SOURCE[0]}"
    uname -r
    package_names "$BUILD_PACKAGES$TEST_PACKAGES$CLANG_RUNTIME_PACKAGE" |
      xargs dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' 2>/dev/null || true
    stat -L -c '%n %s %Y %i' "$PREFIX/criu/bin/criu" "$(command -v clang++)" 2>/dev/null || true
  } | sha256sum
}

main() {
  local mode=all missing
  case ${1:-} in
    '') ;;
    --build-only) mode=build ;;
    --check) mode=check ;;
    -h | --help)
      sed -n '4,/^set -e/ { /^#/ s/^# \{0,1\}//p }' "${BASH_SOURCE[0]}"
      return
      ;;
    *) die "unknown option $1: try --help" ;;
  esac
  detect_system

  if [[ $mode == check ]]; then
    missing=$(missing_packages "$BUILD_PACKAGES$TEST_PACKAGES")
    criu_is_new_enough "$PREFIX/criu/bin/criu" || missing+=${missing:+$'\n'}"criu>=$CRIU_WANTED in $PREFIX/criu"
    [[ -z $missing ]] || die "missing: $(paste -sd' ' <<<"$missing"): run scripts/setup.sh as root"
    say 'nothing is missing'
    return
  fi

  # Two runs at once (demo.sh beside test.sh) take turns. Without root nothing is changed anyway.
  if [[ $EUID == 0 ]]; then
    mkdir -p "$PREFIX"
    exec 9>"$PREFIX/.setup.lock"
    flock -w 1800 9 || die "another setup run holds $PREFIX/.setup.lock since half an hour: end it, then run this again"
  fi

  if [[ $mode == build ]]; then
    mapfile -t missing < <(missing_packages "$BUILD_PACKAGES")
    install_packages "${missing[@]}"
    say 'ready to build'
    return
  fi

  local -a packages
  mapfile -t packages < <(missing_packages "$BUILD_PACKAGES$TEST_PACKAGES")
  install_packages "${packages[@]}"
  install_criu
  if [[ ! -e $PREFIX/.setup-stamp || $(<"$PREFIX/.setup-stamp") != "$(state_of_things)" ]]; then
    install_clang_runtimes
    verify_criu
    if [[ $EUID == 0 ]]; then state_of_things >"$PREFIX/.setup-stamp"; fi
  fi
  say "ready: criu $(criu_version "$PREFIX/criu/bin/criu"), $(runc --version | head -n 1)," \
    "$(containerd --version | awk '{ print "containerd", $3 }'), $(g++ --version | head -n 1)"
}

main "$@"
