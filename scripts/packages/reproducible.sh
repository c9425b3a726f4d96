#!/bin/bash
# Builds the packages twice, from copies of the sources in different directories, with different crate caches, time
# zones and file modes, and compares the results byte for byte.
#
#   scripts/packages/reproducible.sh
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/build/release.sh
. scripts/build/release.sh

scripts/setup.sh packages
work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-reproducible.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# build DIRECTORY VARIABLE=VALUE...
build() {
  local directory=$1
  shift
  mkdir -p "$directory"
  git ls-files -z --cached --others --exclude-standard --deduplicate | tar --null -T - -c | tar -C "$directory" -x
  (cd "$directory" && env -u CARGO_TARGET_DIR "$@" scripts/packages/build.sh) > "$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; echo "FAIL: the build in $directory"; exit 1; }
  (cd "$directory/target/packages" && sha256sum -- *.deb *.rpm)
  # The packages' files, to find the difference.
  (cd "$directory/target/package/release" && find . -maxdepth 1 -type f ! -name '*.d' -exec sha256sum {} + | sort -k 2) \
    > "$directory.parts"
}

cargo_home=${CARGO_HOME:-$HOME/.cargo}
mkdir "$work/cargo"
ln -s "$cargo_home/registry" "$work/cargo/registry"
[ ! -e "$cargo_home/config.toml" ] || cp "$cargo_home/config.toml" "$work/cargo/"

echo "== First"
build "$work/first" | tee "$work/first.sums"
echo "== Second"
umask 077
build "$work/a/second place" CARGO_HOME="$work/cargo" TZ=Pacific/Kiritimati | tee "$work/second.sums"

if diff "$work/first.parts" "$work/a/second place.parts" && cmp "$work/first.sums" "$work/second.sums"; then
  echo "PASS: the same bytes twice"
else
  echo "FAIL: the two builds differ"
  exit 1
fi
