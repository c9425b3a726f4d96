#!/bin/bash
# Makes the image of the driver for Kubernetes, from what `make build` has built.
#
#   scripts/packages/image.sh ARCHIVE [NAME]    the image, as a file that ctr, podman and skopeo read; needs buildah
#   scripts/packages/image.sh --root FOLDER     its files alone
#
# It has the program of NVIDIA's image of the same purpose, under its name, and what NVIDIA's chart calls around it: bash
# and kubelet-plugin-prestart.sh. NVC_PROFILE=debug takes unoptimised programs.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
die() { echo "${0##*/}: $*" >&2; exit 1; }
bin=${CARGO_TARGET_DIR:-target}/${NVC_PROFILE:-release}
[ $# -gt 0 ] || die "usage: ${0##*/} ARCHIVE [NAME]"

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
root=$made/root
mkdir -m 755 "$root" "$root"/{usr,usr/bin,usr/lib,usr/lib64,driver-root,etc,proc,run,sys,tmp,var}
for directory in bin lib lib64; do ln -s "usr/$directory" "$root/$directory"; done
for program in gpu-kubelet-plugin nvc-query nvidia-cdi-hook; do
  [ -x "$bin/$program" ] || die "$bin/$program is missing: make build"
  install -m 755 "$bin/$program" "$root/usr/bin/"
  strip "$root/usr/bin/$program"
done
# nvc-query loads the driver's library, so it has a loader and the libraries that it starts with; the rest is the driver's.
ldd "$bin/nvc-query" | grep -o '/[^ ]*' | while IFS= read -r library; do
  install -D -m 755 "$(readlink -f "$library")" "$root/$(readlink -f "$(dirname "$library")")/$(basename "$library")"
done
# A shell for the command of NVIDIA's chart, without bash's own syntax.
busybox=$(command -v busybox) || die "busybox is missing: install busybox-static"
! ldd "$busybox" > /dev/null 2>&1 || die "$busybox is not static: install busybox-static"
install -m 755 "$busybox" "$root/usr/bin/sh"
printf '#!/bin/sh\nexec /bin/sh "$@"\n' > "$root/usr/bin/bash"
printf '#!/bin/sh\n# NVIDIA'\''s waits for the driver. Ours starts without one, and waits itself.\n' > "$root/usr/bin/kubelet-plugin-prestart.sh"
chmod 755 "$root/usr/bin/bash" "$root/usr/bin/kubelet-plugin-prestart.sh"

if [ "$1" = --root ]; then
  mkdir -p "$2"
  cp -a "$root/." "$2/"
  exit
fi
command -v buildah > /dev/null || die "buildah is missing"
container=$(buildah from scratch)
trap 'buildah rm "$container" > /dev/null; rm -rf "$made"' EXIT
buildah copy -q "$container" "$root/" / > /dev/null
buildah config --env PATH=/usr/bin --entrypoint '[]' --cmd gpu-kubelet-plugin "$container"
buildah commit -q "$container" "docker-archive:$1:${2:-localhost/nvidia-dra-gpu:latest}" > /dev/null
