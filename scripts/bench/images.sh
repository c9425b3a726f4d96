#!/bin/bash
# Builds the real images that `make bench` measures, with more than 2,000 shared libraries of Debian 12's archive: the
# base system and all library packages of medium size (downloads 150 MB, once).
#
#   scripts/bench/images.sh         in ${NVC_BENCH_CACHE:-~/.cache/nvc-bench}; does nothing if they exist
#
# debian: Debian's layout; usr-lib64: the same files in Fedora's layout; layers/00 ... 19: debian, its libraries spread
# over 20 layers. Files are hard links. Needs root, apt and dpkg on Debian or Ubuntu (amd64). Packages are unpacked, not
# installed: their scripts do not matter to ldconfig. /usr/share is left out.
set -euo pipefail

cache=${NVC_BENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvc-bench}
image=$cache/debian
die() { echo "bench/images.sh: $*" >&2; exit 1; }
[ ! -e "$cache/complete" ] || exit 0
[ "$(id -u)" = 0 ] || die "needs root"
for tool in apt-get dpkg-deb tar; do command -v $tool >/dev/null || die "$tool is missing"; done
key=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $key ] || die "$key is missing (package debian-archive-keyring)"

# apt with its own state, in which nothing is installed.
private_apt() {
  local program=$1
  shift
  "$program" -qq -o APT::Sandbox::User=root -o APT::Architecture=amd64 -o APT::Architectures::=amd64 \
    -o APT::Install-Recommends=false \
    -o Dir::State="$cache/apt/state" -o Dir::State::status="$cache/apt/status" -o Dir::Cache="$cache/apt/cache" \
    -o Dir::Etc::SourceList="$cache/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null "$@"
}
export -f private_apt
export cache

mkdir -p "$cache"/apt/{state/lists/partial,cache/archives/partial}
: > "$cache/apt/status"
echo "deb [signed-by=$key] ${NVC_DEBIAN_URI:-http://deb.debian.org/debian} bookworm main" > "$cache/apt/sources.list"
private_apt apt-get update
echo "bench/images.sh: fetching packages" >&2
private_apt apt-get --download-only -y install base-files bash coreutils libc-bin
private_apt apt-cache dumpavail |
  awk '/^Package:/ { name = $2 } /^Section:/ { section = $2 } /^Size:/ { size = $2 }
       /^$/ { if (section == "libs" && name ~ /^lib.*[0-9]$/ && size > 30000 && size < 120000) print name }' |
  (cd "$cache/apt/cache/archives" && xargs -r bash -c 'private_apt apt-get download "$@"' fetch)

rm -rf "$image" "$cache/usr-lib64" "$cache/layers"
mkdir -p "$image"/usr/{bin,sbin,lib,lib64} "$image"/{etc,proc,sys,dev,run,tmp,mnt}
for name in bin sbin lib lib64; do ln -s usr/$name "$image/$name"; done
echo "bench/images.sh: unpacking" >&2
for package in "$cache"/apt/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$package" |
    tar -x -C "$image" --keep-directory-symlink --exclude='./usr/share/*' --exclude='./usr/include/*' --exclude='*.a'
done
triplet=x86_64-linux-gnu
ldconfig -r "$image" 2>/dev/null

# Layers: the first has everything except most of the libraries; the others share those.
mkdir -p "$cache/layers"
cp -al "$image" "$cache/layers/00"
find "$cache/layers/00/usr/lib/$triplet" -maxdepth 1 -name 'lib[a-z]*.so*' ! -name 'libc.*' ! -name 'libtinfo*' -printf '%f\n' |
  sort | awk '{ printf "%02d %s\n", 1 + NR % 19, $1 }' |
  while read -r layer name; do
    mkdir -p "$cache/layers/$layer/usr/lib/$triplet"
    mv "$cache/layers/00/usr/lib/$triplet/$name" "$cache/layers/$layer/usr/lib/$triplet/"
  done
# Newer than all directories, as after the installation of the last library.
touch "$cache/layers/00/etc/ld.so.cache"

# Fedora's layout: the architecture's directory becomes /usr/lib64.
cp -al "$image" "$cache/usr-lib64"
other=$cache/usr-lib64
cp -al "$other/usr/lib/$triplet/." "$other/usr/lib64/"
rm -rf "$other/usr/lib/$triplet" "$other"/etc/debian_version "$other"/etc/ld.so.c*
printf 'ID=fedora\n' > "$cache/os-release"
rm -f "$other/etc/os-release"
mv "$cache/os-release" "$other/etc/os-release"
mkdir -p "$other/etc/ld.so.conf.d"
echo 'include ld.so.conf.d/*.conf' > "$other/etc/ld.so.conf"
# Built into Fedora's ldconfig, but not into Debian's.
echo /usr/lib64 > "$other/etc/ld.so.conf.d/usr-lib64.conf"
ldconfig -r "$other" 2>/dev/null

rm -rf "$cache/apt"
touch "$cache/complete"
for name in debian usr-lib64; do
  echo "bench/images.sh: $(ldconfig -r "$cache/$name" -p | head -1 | cut -d' ' -f1) libraries in $cache/$name"
done >&2
