#!/bin/bash
# Cross-builds the arm64 packages on x86_64, runs their programs under qemu-user, and then the unit tests of the toolkit
# and of libnvc's pure modules.
#
#   scripts/test/arm64.sh [packages] [tests]      default: both
#
# Needs the Rust target aarch64-unknown-linux-gnu (`rustup target add`, tried if it is missing), and Debian's
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static (`scripts/setup.sh arm64` installs them). qemu-user
# emulates neither namespaces nor mounts faithfully: the privileged tests need an arm64 machine.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/../.."
# shellcheck source=scripts/packages/check/common.sh
. scripts/packages/check/common.sh
. scripts/build/release.sh
export NVC_MACHINE=aarch64
[ $# -gt 0 ] || set -- packages tests

scripts/setup.sh arm64
scripts/setup.sh packages
. scripts/build/cross.sh
[ "$triple" ] || { say "test-arm64: this is an arm64 machine: scripts/test.sh tests everything" >&2; exit 1; }
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] || rustup target add "$triple" ||
  { say "test-arm64: rustc has no standard library for $triple, and rustup cannot get it" >&2; exit 1; }

target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
packages=$target/packages-aarch64
work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-arm64.XXXXXX")
trap 'rm -rf "$work"' EXIT

under_qemu() { qemu-aarch64-static -L /usr/aarch64-linux-gnu "$@"; }

all_are_arm64() {
  local file
  while read -r file; do
    readelf -h "$file" | grep -q 'Machine: *AArch64' || { echo "$file: not for arm64"; return 1; }
  done < <(find "$work/root" -type f \( -path '*/bin/*' -o -name '*.so.*' -o -name nvc-query \))
  for file in nvidia-ctk nvidia-cdi-hook gpu-kubelet-plugin; do
    scripts/build/check-static.sh "$work/root/usr/bin/$file" || return
  done
}
fields_are_arm64() {
  local file
  for file in "$packages"/*.deb; do
    case $(dpkg-deb -f "$file" Package Architecture | tr '\n' ' ') in
      *' nvidia-docker2 '*'Architecture: all '* | *'Architecture: arm64 '*) ;;
      *) echo "$file: another architecture"; return 1 ;;
    esac
  done
  for file in "$packages"/*.rpm; do
    case $(rpm -qp --qf '%{ARCH}' "$file") in noarch | aarch64) ;; *) echo "$file: another architecture"; return 1 ;; esac
  done
}
answers() { # PROGRAM EXPECTED-LINE OPTIONS...
  under_qemu "$work/root/usr/bin/$1" "${@:3}" > "$work/answer" 2>&1 || { cat "$work/answer"; return 1; }
  grep -E "$2" "$work/answer" || { cat "$work/answer"; return 1; }
}
# It also calls the low-level runtime.
runtime_answers() {
  printf '#!/bin/sh\necho low-level\n' > "$work/runc"
  chmod 755 "$work/runc"
  PATH=$work:$PATH answers "$1" low-level --version
}
library_answers() {
  # Debian's libraries are not executable.
  install -m 755 "$work/root/usr/lib/aarch64-linux-gnu/libnvidia-container.so.$version" "$work/library"
  under_qemu "$work/library" | grep -x 'build platform: aarch64'
}
# Docker's answer does not matter here.
wrapper_answers() {
  printf '#!/bin/sh\necho "docker $*"\n' > "$work/docker"
  chmod 755 "$work/docker"
  PATH=$work:$PATH answers nvidia-docker "NVIDIA Docker: $version" version
}
c_program() {
  aarch64-linux-gnu-gcc -std=c99 -Wall -Werror -o "$work/devices" pkg/check/devices.c "-I$work/root/usr/include" \
    "-L$work/root/usr/lib/aarch64-linux-gnu" -lnvidia-container
  # Its error for a missing driver proves that the library was loaded and called.
  local status=0
  under_qemu -E "LD_LIBRARY_PATH=$work/root/usr/lib/aarch64-linux-gnu" "$work/devices" / > "$work/answer" 2>&1 || status=$?
  cat "$work/answer"
  [ $status = 1 ] && grep -q 'initialization error\|nvml\|driver' "$work/answer"
}

for part; do
  case $part in
    packages)
      scripts/packages/build.sh
      title "The arm64 packages under $(qemu-aarch64-static --version | head -n 1)"
      for file in "$packages"/*.deb; do dpkg-deb -x "$file" "$work/root"; done
      check "the packages are for arm64" fields_are_arm64
      check "so are all files, and the hooks are static" all_are_arm64
      check "lintian finds nothing" scripts/packages/check/lintian.sh "$packages"/*.deb
      check "rpmlint finds nothing" rpmlint --strict -c pkg/rpm/rpmlint.toml "$packages"/*.rpm
      check "nvidia-container-cli --version" answers nvidia-container-cli "^cli-version: $version$" --version
      check "gpu-kubelet-plugin --version" answers gpu-kubelet-plugin " $version$" --version
      for program in nvidia-container-runtime-hook nvidia-container-toolkit nvidia-cdi-hook nvidia-ctk; do
        check "$program --version" answers $program " version $version" --version
      done
      for program in nvidia-container-runtime nvidia-container-runtime.cdi nvidia-container-runtime.legacy; do
        check "$program --version" runtime_answers $program
      done
      check "nvidia-docker-plugin -v" answers nvidia-docker-plugin "NVIDIA Docker plugin: $version" -v
      check "nvidia-docker version" wrapper_answers
      check "the C library says its version" library_answers
      check "a C program calls it" c_program
      ;;
    tests)
      . scripts/test/pure-modules.sh
      title "Unit tests under qemu-user"
      # Static programs need no -L, with which qemu looks up absolute paths below /usr/aarch64-linux-gnu first: the tests
      # that open / would work there.
      export "${variable}_RUNNER=qemu-aarch64-static" "${variable}_RUSTFLAGS=-Ctarget-feature=+crt-static"
      check "the toolkit" cargo test -q -p nvc-hostfile -p nvc-oci -p nvc-cdi -p nvc-policy -p nvc-generate --lib
      # shellcheck disable=SC2154 # pure-modules.sh
      check "libnvc's pure modules" cargo test -q -p libnvc --lib -- "${modules[@]}"
      ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ $failures = 0 ] || { say "FAIL: $failures of the checks above"; exit 1; }
say "PASS: all checks for arm64"
