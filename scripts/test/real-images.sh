#!/bin/bash
# Builds three real container roots for the tests of the builtin ldconfig: the libraries of Debian 11, 12 and 13 from
# their packages, 32-bit ones included, with the loader cache that each image's own ldconfig writes.
#
#   scripts/test/real-images.sh         in target/images; does nothing if they exist (downloads 60 MB, once)
#
# bullseye: glibc 2.31, whose caches have two tables, and /lib separate from /usr/lib; bookworm and trixie: later glibcs
# and a merged /usr. Packages are unpacked, not installed; only libraries and the loader's configuration are kept. Needs
# root, apt and dpkg on Debian or Ubuntu (amd64), and the keys of Debian's archive.
#
# If a mirror has no usable index of i386 (it can be out of step with the release file for days), the image is made
# without 32-bit libraries, and SUITE.without-32 beside it tells the test.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
images=$(readlink -m "${CARGO_TARGET_DIR:-target}/images")
packages="libc-bin base-files curl git python3-minimal gnupg procps xz-utils libglib2.0-bin"
packages32="libc6:i386 libstdc++6:i386 zlib1g:i386 libx11-6:i386"
die() { echo "test/real-images.sh: $*" >&2; exit 1; }
[ ! -e "$images/complete" ] || exit 0
[ "$(id -u)" = 0 ] || die "needs root"
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || die "needs dpkg, on amd64"
for tool in apt-get dpkg-deb tar; do command -v $tool >/dev/null || die "$tool is missing"; done
key=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $key ] || die "$key is missing (package debian-archive-keyring)"

fetch() { # SUITE MACHINE...: downloads the packages with a separate apt state, in which nothing is installed
  local apt=$images/apt-$1 wanted=$packages machines=("${@:2}")
  [ $# = 2 ] || wanted+=" $packages32"
  rm -rf "$apt"
  mkdir -p "$apt"/{state/lists/partial,cache/archives/partial}
  : > "$apt/status"
  echo "deb [signed-by=$key] ${NVC_DEBIAN_URI:-http://deb.debian.org/debian} $1 main" > "$apt/sources.list"
  local options=(-qq -o APT::Sandbox::User=root -o APT::Architecture=amd64 "${machines[@]/#/-oAPT::Architectures::=}"
    -o APT::Install-Recommends=false -o Acquire::Languages=none -o Acquire::Retries=3
    -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
    -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null)
  # shellcheck disable=SC2086 # several words
  apt-get "${options[@]}" update && apt-get "${options[@]}" --download-only -y install $wanted > /dev/null
}

unpack() { # SUITE
  local root=$images/$1.new name package
  rm -rf "$root"
  mkdir -p "$root"/usr/{bin,sbin,lib} "$root"/{etc,proc,sys,dev,run,tmp,var/lib}
  [ "$1" = bullseye ] || for name in bin sbin lib; do ln -s usr/$name "$root/$name"; done
  [ "$1" = bullseye ] || { mkdir "$root/usr/lib64" && ln -s usr/lib64 "$root/lib64"; }
  for package in "$images/apt-$1"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" |
      tar -x -C "$root" --keep-directory-symlink --wildcards --exclude='./usr/share/*' --exclude='./usr/bin/*' \
        --exclude='./bin/*' --exclude='./usr/lib/python3*' --exclude='./usr/lib/git-core*' --exclude='./var/*' \
        --exclude='./usr/lib/*/perl*' --exclude='./usr/lib/*/gconv*' --exclude='./usr/lib/*/libicudata*' --exclude='./sbin/[a-km-z]*' --exclude='./usr/sbin/[a-km-z]*'
  done
  # As after the installation of the last library.
  chroot "$root" /sbin/ldconfig
  rm -rf "${images:?}/$1" "$images/apt-$1"
  mv "$root" "$images/$1"
}

mkdir -p "$images"
for suite in bullseye bookworm trixie; do
  echo "test/real-images.sh: making $images/$suite" >&2
  if ! fetch $suite amd64 i386; then
    echo "test/real-images.sh: $suite: making it without 32-bit libraries" >&2
    fetch $suite amd64
    touch "$images/$suite.without-32"
  fi
  unpack $suite
done
touch "$images/complete"
