#!/bin/sh
# Installs the packages that building, testing and the demo need, on Debian and Ubuntu, if some are missing and we are
# root; otherwise names them. Does nothing if all are installed.
#
#   scripts/setup.sh [demo|tests|suites|packages|arm64|old-kernel]   also for all tests, for building and checking packages, ...
set -eu

# program  Debian package  purpose
needed() {
  cat <<'END'
cc gcc libnvc's build and the simulated driver
readelf binutils tests
objcopy binutils the C library
ldd libc-bin container roots
unshare util-linux containers
setpriv util-linux containers
nsenter util-linux tests
mount mount containers
pivot_root util-linux the demo
chroot coreutils containers
make make make
python3 python3 the conformance suite
END
  [ "$1" != demo ] || echo runc runc the containers of the demo
  [ "$1" != tests ] || cat <<'END'
g++ g++ the C header as C++
clang clang the C library with another compiler
go golang-go the Go example
valgrind valgrind the C library under valgrind
dockerd docker.io containers of docker: the hook, the runtime, nvidia-docker
curl curl nvidia-docker-plugin
ip iproute2 nvidia-docker-plugin
chromium chromium the status page
runc runc the runtime under engines
crun crun the runtime under engines
containerd containerd the runtime under engines
podman podman the hook and the runtime under engines
docker-compose docker-compose docs/recipes.md
bwrap bubblewrap docs/recipes.md
lxc-execute lxc docs/recipes.md
tar tar images for engines
busybox busybox-static the folder of make test-gpu
strip binutils the folder of make test-gpu
strace strace scripts/bench/cdi.sh
END
  [ "$1" != suites ] || cat <<'END'
bats bats runc's tests
jq jq runc's tests
gawk gawk runc's tests
runc runc the runtime itself
crun crun the runtime itself
xz xz-utils images
busybox busybox-static images
debootstrap debootstrap images
dpkg-source dpkg-dev the tests' sources
END
  [ "$1" != old-kernel ] || cat <<'END'
qemu-system-x86_64 qemu-system-x86 the old kernel
busybox busybox-static the old kernel
cpio cpio the old kernel
END
  [ "$1" != packages ] || cat <<'END'
git git packages
dpkg-gensymbols dpkg-dev packages
strip binutils packages
rpmbuild rpm packages
debootstrap debootstrap the check of packages
lintian lintian the check of packages
rpmlint rpmlint the check of packages
man man-db the check of manual pages
groff groff the check of manual pages
END
  [ "$1" != arm64 ] || cat <<'END'
aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu packages for arm64
qemu-aarch64-static qemu-user-static programs for arm64
END
}

# Services and jobs may lack it.
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export HOME
# An ordinary user's PATH may lack these.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

cargo=$(command -v cargo || true)
for home in "${CARGO_HOME:-$HOME/.cargo}" "$(getent passwd "${SUDO_USER:-}" 2>/dev/null | cut -d: -f6)/.cargo"; do
  [ -n "$cargo" ] || { [ -x "$home/bin/cargo" ] && cargo=$home/bin/cargo; } || true
done
if [ -z "$cargo" ]; then
  echo "setup: no Rust toolchain found (cargo); see https://rustup.rs" >&2
  exit 1
fi

packages=
while read -r program package why; do
  command -v "$program" >/dev/null 2>&1 && continue
  echo "setup: $program is missing ($why)"
  case " $packages " in *" $package "*) ;; *) packages="$packages $package" ;; esac
done <<END
$(needed "${1:-}")
END
# A compiler is useless without the C library's headers.
if command -v cc >/dev/null 2>&1; then
  echo '#include <stdio.h>
#include <linux/bpf.h>' | cc -E - >/dev/null 2>&1 || packages="$packages libc6-dev"
elif [ -n "$packages" ]; then
  packages="$packages libc6-dev"
fi

install() {
  [ -n "$1" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: please install the Debian packages$1 (or what your distribution calls them)" >&2
    exit 1
  fi
  echo "setup: installing$1"
  export DEBIAN_FRONTEND=noninteractive
  apt="apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5"
  # shellcheck disable=SC2086 # several words
  $apt install -y --no-install-recommends $1 >/dev/null 2>&1 || {
    $apt update
    # shellcheck disable=SC2086
    $apt install -y --no-install-recommends $1 >/dev/null
  }
}

install "$packages"
# Since Debian 13, docker.io has no client, and podman does not start without a program for networks.
if [ "${1:-}" = tests ] && ! command -v docker >/dev/null 2>&1; then
  install " docker-cli netavark"
fi
# The reference library of CDI, sources only.
cdi=golang-github-container-orchestrated-devices-container-device-interface-dev
if [ "${1:-}" = tests ] && [ ! -d /usr/share/gocode/src/github.com/container-orchestrated-devices ]; then
  install " $cdi"
fi
if [ "${1:-}" = arm64 ] && [ ! -e /usr/aarch64-linux-gnu/lib/libc.a ]; then
  install " libc6-dev-arm64-cross"
fi
# The kubelet of the tests. It is run by the system's Python, where these are installed.
if [ "${1:-}" = tests ] && ! /usr/bin/python3 -c 'import cryptography, grpc, google.protobuf' 2>/dev/null; then
  install " python3-cryptography python3-grpcio python3-protobuf"
fi
# Its protocols, as Kubernetes publishes them.
protocols=${XDG_CACHE_HOME:-$HOME/.cache}/nvc-kubernetes/protocols
if [ "${1:-}" = tests ] && [ ! -d "$protocols" ]; then
  echo "setup: fetching $protocols"
  sum=4a58443df1caba1378fcdaaf16c52c461a484928873ed3defd5c5632867af037
  mkdir -p "$protocols.new"
  curl -fsSL --retry 5 https://proxy.golang.org/k8s.io/kubelet/@v/v0.36.3.zip -o "$protocols.new/zip"
  echo "$sum  $protocols.new/zip" | sha256sum --quiet -c
  python3 -m zipfile -e "$protocols.new/zip" "$protocols.new"
  mv "$protocols.new/k8s.io/kubelet@v0.36.3/pkg/apis" "$protocols"
  rm -r "$protocols.new"
fi
# The sanitizers' libraries must match the compiler's version.
if [ "${1:-}" = tests ] && ! ls "$(clang -print-resource-dir)"/lib/*/*asan* >/dev/null 2>&1; then
  install " libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
fi
