#!/bin/sh
# Builds what is shipped: nvidia-container-cli, the C library, manual pages and completions, below target/release
# (CARGO_TARGET_DIR/release).
set -eu
umask 022
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/release.sh

target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked -p nvc-cli
scripts/build-capi.sh

# Generators need no optimisation, but another profile would build everything once more.
cargo build --release --locked -p nvc-generate
share=$target/release/share
rm -rf "$share"
"$target/release/nvc-generate" "$share" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
mkdir -p "$share/man/man3" "$share/doc"
sed "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/; s/@VERSION@/$version/" pkg/man/nvc.3 > "$share/man/man3/nvc.3"
scripts/third-party.sh > "$share/doc/THIRD-PARTY"
