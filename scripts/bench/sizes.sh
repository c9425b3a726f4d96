#!/bin/bash
# Prints the sizes of the shipped programs and of the packages as tables; with --write, puts that of the programs into
# docs/performance.md. Needs the packages of scripts/packages/build.sh; those of scripts/test/arm64.sh add a column.
#
#   scripts/bench/sizes.sh [--write]
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

programs() {
  local machine file package linked
  printf '| program | linked |'; printf ' %s, bytes |' "${machines[@]}"; echo ' crates |'
  printf '| --- | --- |'; for machine in "${machines[@]}"; do printf ' ---: |'; done; echo ' ---: |'
  while read -r file package; do
    for machine in "${machines[0]}"; do file=$(cd "$work/$machine" && echo $file); done
    linked=dynamically
    readelf -l "$work/${machines[0]}/$file" | grep -q INTERP || linked=statically
    [[ $file != *.so.* && $file != *.a ]] || linked=
    printf '| %s | %s |' "${file##*/}" "$linked"
    for machine in "${machines[@]}"; do
      file=${file//$(triplet "${machines[0]}")/$(triplet "$machine")}
      printf ' %s |' "$(size "$work/$machine/$file")"
      file=${file//$(triplet "$machine")/$(triplet "${machines[0]}")}
    done
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
triplet() { case $1 in amd64) echo x86_64-linux-gnu ;; arm64) echo aarch64-linux-gnu ;; esac }

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

{
  echo "Bytes, of $(git log -1 --format='%h, %cs' "$NVC_BUILD_REVISION" 2>/dev/null || echo "version $version"). Crates: \`cargo tree -e normal,no-proc-macro\`, our own included."
  echo
  programs
} > "$work/tables"
if [ "${1:-}" != --write ]; then
  cat "$work/tables"
  echo
  packages
else
  sed -i -e '/^<!-- sizes -->/,/^<!-- end -->/{ /^<!-- sizes -->/{ p; r '"$work/tables"'
}; /^<!-- end -->/!d }' docs/performance.md
fi
