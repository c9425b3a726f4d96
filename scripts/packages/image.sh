#!/bin/bash
# Makes the image of the driver for Kubernetes, of what `make build` has built.
#
#   scripts/packages/image.sh ARCHIVE [NAME]               the image, as a file that ctr, podman and skopeo read
#   scripts/packages/image.sh --files FOLDER               its files alone
#   scripts/packages/image.sh --commit FOLDER ARCHIVE [NAME]   the image of such files, with buildah
#
# It has the program of NVIDIA's image of the same purpose, under its name, and what NVIDIA's chart calls around it: bash
# and kubelet-plugin-prestart.sh. NVC_PROFILE=debug takes unoptimised programs.
set -euo pipefail

die() { echo "${0##*/}: $*" >&2; exit 1; }

commit() { # FOLDER ARCHIVE [NAME]
  command -v buildah > /dev/null || die "buildah is missing"
  local container
  container=$(buildah from scratch)
  buildah copy -q "$container" "$1" / > /dev/null
  buildah config --env PATH=/usr/bin --cmd gpu-kubelet-plugin "$container"
  buildah commit -q "$container" "docker-archive:$2:${3:-localhost/nvidia-dra-gpu:latest}" > /dev/null
  buildah rm "$container" > /dev/null
}

files() { # FOLDER
  local root=$1 bin=${CARGO_TARGET_DIR:-target}/${NVC_PROFILE:-release} directory program
  mkdir -p -m 755 "$root"/{usr,usr/bin,usr/lib,usr/lib64,driver-root,etc,proc,run,sys,tmp,var}
  for directory in bin lib lib64; do ln -s "usr/$directory" "$root/$directory"; done
  for program in gpu-kubelet-plugin nvc-query nvidia-cdi-hook; do
    [ -x "$bin/$program" ] || die "$bin/$program is missing: make build"
    install -m 755 "$bin/$program" "$root/usr/bin/"
    strip "$root/usr/bin/$program"
  done
  # nvc-query loads the driver's library, so it has a loader and the libraries that it starts with; others are the driver's.
  local library
  for library in $(ldd "$bin/nvc-query" | grep -o '/[^ ]*'); do
    install -D -m 755 "$(readlink -f "$library")" "$root$(readlink -f "${library%/*}")/${library##*/}"
  done
  # A shell for the command of NVIDIA's chart, without bash's own syntax.
  local busybox
  busybox=$(command -v busybox) || die "busybox is missing: install busybox-static"
  ! ldd "$busybox" > /dev/null 2>&1 || die "$busybox is not static: install busybox-static"
  install -m 755 "$busybox" "$root/usr/bin/sh"
  # shellcheck disable=SC2016 # of the new script
  printf '#!/bin/sh\nexec /bin/sh "$@"\n' > "$root/usr/bin/bash"
  printf '#!/bin/sh\n# That of NVIDIA waits for the driver. Ours starts without one, and waits itself.\n' \
    > "$root/usr/bin/kubelet-plugin-prestart.sh"
  chmod 755 "$root/usr/bin/bash" "$root/usr/bin/kubelet-plugin-prestart.sh"
}

case ${1:-} in
  '') die "usage: ${0##*/} ARCHIVE [NAME]" ;;
  --commit) commit "${@:2}" && exit ;;
esac
cd "$(dirname "$(readlink -f "$0")")/../.."
if [ "$1" = --files ]; then
  files "$2"
else
  made=$(mktemp -d)
  trap 'rm -rf "$made"' EXIT
  files "$made"
  chmod 755 "$made"
  commit "$made" "$@"
fi
