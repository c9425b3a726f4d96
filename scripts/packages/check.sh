#!/bin/bash
# Checks the packages in target/packages.
#
#   scripts/packages/check.sh [static] [deb] [rpm] [install]      default: all four
#
# static: lintian, rpmlint and the manual pages. deb: in a fresh Debian 12 the packages install over every combination of
# NVIDIA's (stand-ins), go back, work, compile a C program, and leave no file behind. rpm: the same with rpm and dnf.
# install: `make install` and `make uninstall`, into a directory and, for PREFIX=/usr/local, on a fresh Debian 12.
#
# As root. Builds the packages if there are none. debootstrap makes the Debian roots once, from the machine's own package
# mirror, and keeps them in ~/.cache/nvc-packages. Needs the programs that `scripts/setup.sh packages` installs.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# shellcheck source=scripts/packages/check/common.sh
. "$here/check/common.sh"

[ $# -gt 0 ] || set -- static deb rpm install
for part; do
  case $part in static | deb | rpm | install) ;; *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
done

[ "$(id -u)" = 0 ] || { say "packages/check.sh: needs root (a Debian of its own is made)" >&2; exit 1; }
cd "$here/../.."
. scripts/build/release.sh
target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
packages=$target/packages

scripts/setup.sh packages
[ -e "$packages/SHA256SUMS" ] || scripts/packages/build.sh
simdriver=${NVC_SIMDRIVER:-$target/debug/nvc-simdriver}
[ "${NVC_SIMDRIVER:-}" ] || cargo build -q -p nvc-testkit

work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-packages.XXXXXX")
# All mounts below it are in namespaces that have ended by then.
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work"

# debian_root NAME PACKAGES [DIRECTORY]: $work/DIRECTORY or $work/NAME, a bare Debian 12 with these packages
debian_root() {
  local cache mirror directory=$work/${3:-$1}
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/nvc-packages/$1-$(dpkg --print-architecture).tar
  if [ ! -e "$cache" ]; then
    title "Making a bare Debian 12 (once): $1"
    mkdir -p "${cache%/*}"
    # shellcheck disable=SC2016 # apt's variables
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' 2>/dev/null | head -n 1)
    unshare --mount debootstrap --variant=minbase --include="$2" bookworm "$work/bare" \
      "${mirror:-http://deb.debian.org/debian}" > "$work/debootstrap.log" ||
      { tail -n 5 "$work/debootstrap.log"; return 1; }
    tar -C "$work/bare" --one-file-system -cf "$cache.new" .
    mv "$cache.new" "$cache"
    rm -rf --one-file-system "$work/bare"
  fi
  mkdir "$directory"
  tar -C "$directory" -xf "$cache"
  mkdir "$directory/packages"
  cp "$here/check/"*.sh "$directory/packages/"
}

# inside ROOT SCRIPT: runs the script of scripts/packages/check in that root
inside() {
  # shellcheck disable=SC2016 # expanded by that shell
  unshare --mount --pid --fork --kill-child --propagation private -- sh -c '
    mount -t proc proc "$0/proc" && unset TMPDIR && exec chroot "$0" bash "/packages/$1" "$2"' \
    "$work/$1" "$2" "$version" || failures=$((failures + 1))
}

# Man pages without warnings of groff, man and, if installed, mandoc.
manual_pages() {
  local page text
  for page in "$target"/package/release/share/man/man*/*; do
    text=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null; groff -man -ww -Tutf8 -z "$page" 2>&1)
    [ -z "$text" ] || { printf '%s: %s\n' "$page" "$text"; return 1; }
  done
}

installs_and_uninstalls() {
  local root=$work/install
  env BUILD="$target/package/release" DESTDIR="$root" scripts/build/install.sh
  "$root/usr/bin/nvidia-container-cli" --version | grep -Fx "cli-version: $version"
  cc -o "$work/devices" pkg/check/devices.c "-I$root/usr/include" "-L$root/usr/lib" -lnvidia-container
  LD_LIBRARY_PATH=$root/usr/lib "$work/devices" "$work/sim" | grep '^gpu '
  env BUILD="$target/package/release" DESTDIR="$root" scripts/build/install.sh --uninstall
  [ -z "$(find "$root" ! -type d)" ]
}

# What `make install` needs, for a machine: the sources, and the results of `make build`.
prepare_machine() {
  local root=$1 built=$target/release
  grep -qx prefix=/usr/local "$built/libnvidia-container.pc" 2> /dev/null ||
    PREFIX=/usr/local LIBDIR='' LIBEXECDIR='' CARGO_TARGET_DIR=$target scripts/build/all.sh
  mkdir "$root/src" "$root/build"
  cp -r Cargo.toml CHANGELOG.md LICENSE README.md examples include pkg scripts "$root/src/"
  find "$built" -maxdepth 1 -type f ! -name '*.d' ! -name '*.rlib' -exec cp -t "$root/build" {} +
  cp -r "$built/share" "$root/build/"
  cp pkg/check/devices.c "$root/packages/"
  cp -a "$work/sim" "$root/sim"
}

"$simdriver" build "$work/sim" > /dev/null
for part; do
  case $part in
    static)
      title "The packages"
      (cd "$packages" && sha256sum -- *.deb *.rpm)
      check "lintian finds nothing" scripts/packages/check/lintian.sh "$packages"/*.deb
      check "rpmlint finds nothing" rpmlint --strict -c pkg/rpm/rpmlint.toml "$packages"/*.rpm
      check "the manual pages are sound" manual_pages
      ;;
    deb)
      debian_root bookworm gcc,libc6-dev,pkgconf
      cp "$packages"/*.deb pkg/check/devices.c "$work/bookworm/packages/"
      cp -a "$work/sim" "$work/bookworm/sim"
      title "The Debian packages in a fresh Debian $(cat "$work/bookworm/etc/debian_version")"
      inside bookworm deb.sh
      ;;
    rpm)
      debian_root bookworm-rpm binutils,rpm,dnf,createrepo-c
      cp "$packages"/*.rpm "$work/bookworm-rpm/packages/"
      title "The RPM packages with rpm and dnf"
      inside bookworm-rpm rpm.sh
      ;;
    install)
      title "make install"
      check "make install and make uninstall" installs_and_uninstalls
      debian_root bookworm gcc,libc6-dev,pkgconf machine
      prepare_machine "$work/machine"
      inside machine install.sh
      ;;
  esac
done

if [ $failures -gt 0 ]; then
  say "FAIL: $failures of the checks above"
  exit 1
fi
say "PASS: all checks of the packages"
