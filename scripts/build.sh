#!/bin/sh
# Builds what is shipped: nvidia-container-cli, the C library, manual pages and completions, below target/release
# (CARGO_TARGET_DIR/release). PREFIX and LIBEXECDIR say where it will be installed; only programs that are linked with the
# static library depend on that.
set -eu
umask 022
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/release.sh

target=${CARGO_TARGET_DIR:-target}

# The same bytes wherever crates, sources and target directory are; the last that fits counts. Encoded since they may have
# spaces in their names.
CARGO_ENCODED_RUSTFLAGS=$(printf -- '--remap-path-prefix=%s=%s\037' "${CARGO_HOME:-$HOME/.cargo}" /usr/src/cargo \
  "$repository" /usr/src/libnvc "$(readlink -m "$target")" /usr/src/libnvc/target)
export CARGO_ENCODED_RUSTFLAGS="${CARGO_ENCODED_RUSTFLAGS%?}"
unset RUSTFLAGS

cargo build --release --locked -p nvc-cli -p nvc-docker -p nvc-hook -p nvc-runtime -p nvc-ctk
# It runs in containers' namespaces as root, so it depends on nothing there: all of it is in one file.
machine=$(rustc -vV | sed -n 's/^host: //p')
CARGO_ENCODED_RUSTFLAGS=$(printf '%s\037-Ctarget-feature=+crt-static' "$CARGO_ENCODED_RUSTFLAGS") \
  cargo build --release --locked -p nvc-cdi-hook --bin nvidia-cdi-hook --target "$machine"
cp "$target/$machine/release/nvidia-cdi-hook" "$target/release/nvidia-cdi-hook"
scripts/build-capi.sh

# Optimised without need, but with another profile clap would be compiled once more.
cargo build --release --locked -p nvc-generate
share=$target/release/share
rm -rf "$share"
"$target/release/nvc-generate" "$share" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
mkdir -p "$share/man/man3" "$share/doc"
sed "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/; s/@VERSION@/$version/" pkg/man/nvc.3 > "$share/man/man3/nvc.3"
mkdir -p "$share/man/man8"
for page in nvidia-cdi-hook.8 nvidia-docker.1 nvidia-docker-plugin.8 nvidia-container-runtime.8 nvidia-container-runtime-hook.8; do
  sed "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/; s/@VERSION@/$version/" "pkg/man/$page" > "$share/man/man${page##*.}/$page"
done
scripts/third-party.sh > "$share/doc/THIRD-PARTY"
