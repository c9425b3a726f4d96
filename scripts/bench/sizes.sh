#!/bin/bash
# Prints the sizes of the shipped programs and of the packages as tables. Needs the packages of
# scripts/packages/build.sh; those of scripts/test/arm64.sh add a column.
#
#   scripts/bench/sizes.sh
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/build/release.sh

target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-sizes.XXXXXX")
trap 'rm -rf "$work"' EXIT
machines=()
for packages in "$target/packages" "$target/packages-aarch64"; do
  [ -e "$packages/SHA256SUMS" ] || continue
  machine=$(dpkg-deb -f "$packages"/nvidia-container-toolkit_*.deb Architecture)
  machines+=("$machine")
  for file in "$packages"/*.deb; do dpkg-deb -x "$file" "$work/$machine"; done
  ln -s "$packages" "$work/packages-$machine"
done
[ ${#machines[@]} -gt 0 ] || { echo "sizes: build the packages first (scripts/packages/build.sh)" >&2; exit 1; }

thousands() { sed ':a; s/\B[0-9]\{3\}\>/,&/; ta' <<< "$1"; }
size() { thousands "$(stat -Lc %s "$1")"; }
crates() {
  [ -z "$1" ] || cargo tree --offline --locked -e normal,no-proc-macro --prefix none -p "$1" | grep -o '^[^ ]* v[^ ]*' | sort -u | wc -l
}

# path MACHINE PATTERN: the file in that machine's packages
path() {
  # shellcheck disable=SC2086 # a pattern
  echo "$work/$1/"$2
}

programs() {
  local pattern package file linked machine
  printf '| program | linked |'; printf ' %s, bytes |' "${machines[@]}"; echo ' crates |'
  printf '| --- | --- |'; for machine in "${machines[@]}"; do printf ' ---: |'; done; echo ' ---: |'
  while read -r pattern package; do
    file=$(path "${machines[0]}" "$pattern")
    linked=dynamically
    readelf -l "$file" | grep -q INTERP || linked=statically
    [[ $file != *.so.* && $file != *.a ]] || linked=
    printf '| %s | %s |' "${file##*/}" "$linked"
    for machine in "${machines[@]}"; do printf ' %s |' "$(size "$(path "$machine" "$pattern")")"; done
    echo " $(crates "$package") |"
  done <<'END'
usr/bin/nvidia-container-cli nvc-cli
usr/bin/nvidia-container-runtime-hook nvc-hook
usr/bin/nvidia-container-runtime nvc-runtime
usr/bin/nvidia-cdi-hook nvc-cdi-hook
usr/bin/nvidia-ctk nvc-ctk
usr/bin/nvidia-docker nvc-docker
usr/bin/nvidia-docker-plugin nvc-docker
usr/lib/*/libnvidia-container.so.1.*.* libnvidia-container
usr/lib/*/libnvidia-container.a libnvidia-container
usr/libexec/libnvidia-container/nvc-query libnvidia-container
END
}

packages() {
  local machine file name
  printf '| package |'; for machine in "${machines[@]}"; do printf ' deb, %s | rpm, %s |' "$machine" "$machine"; done; echo
  printf '| --- |'; for machine in "${machines[@]}"; do printf ' ---: | ---: |'; done; echo
  for file in "$work/packages-${machines[0]}"/*.deb; do
    name=${file##*/} name=${name%%_*}
    printf '| %s |' "$name"
    for machine in "${machines[@]}"; do
      printf ' %s |' "$(size "$work/packages-$machine/${name}_"*.deb)"
      printf ' %s |' "$(size "$(ls "$work/packages-$machine/${name/%-dev/-devel}"-[0-9]*.rpm)")"
    done
    echo
  done
}

echo "Bytes, of $(git log -1 --format='%h, %cs' "$NVC_BUILD_REVISION" 2>/dev/null || echo "version $version")." \
  'Crates: `cargo tree -e normal,no-proc-macro`, our own included.'
echo
programs
echo
packages
