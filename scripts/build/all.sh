#!/bin/sh
# Builds everything that is shipped: programs, the C library, man pages and completions, below target/release
# (CARGO_TARGET_DIR/release); for another machine, NVC_MACHINE=aarch64, below target/TRIPLE/release (cross.sh).
# PREFIX and LIBEXECDIR name the place of installation, where nvidia-ctk and programs that link the static library look
# for nvc-query. NVC_OUT is another directory for the results; what cargo made is used again for any place.
set -eu
umask 022
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/build/release.sh
. scripts/build/cross.sh

target=${CARGO_TARGET_DIR:-target}
built=$target/${triple:+$triple/}release
out=${NVC_OUT:-$built}

# Reproducible: the same bytes for any place of crates, sources and target directory; the last match counts. Encoded,
# since the paths may contain spaces.
CARGO_ENCODED_RUSTFLAGS=$(printf -- '--remap-path-prefix=%s=%s\037' "${CARGO_HOME:-$HOME/.cargo}" /usr/src/cargo \
  "$repository" /usr/src/libnvc "$(readlink -m "$target")" /usr/src/libnvc/target)
# Most linkers are set up to add build ids, by which our programs know each other; here all are.
export CARGO_ENCODED_RUSTFLAGS="$CARGO_ENCODED_RUSTFLAGS-Clink-arg=-Wl,--build-id=sha1"
unset RUSTFLAGS

. scripts/build/place.sh
# nvidia-ctk finds nvc-query from its own place below /usr and /usr/local: one program for both.
case $LIBEXECDIR in
  /usr/libexec | /usr/local/libexec) unset NVC_LIBEXECDIR ;;
  *) export NVC_LIBEXECDIR="$LIBEXECDIR/libnvidia-container" ;;
esac
programs="-p nvc-cli -p nvc-docker -p nvc-hook -p nvc-ctk -p nvc-cdi-hook"
# shellcheck disable=SC2086 # several words
cargo build --release --locked $programs
# By itself: it needs more of some crates, which the programs that start with each container must not have.
cargo build --release --locked -p nvc-node
# The runtime knows the other programs' build ids.
# shellcheck disable=SC2086
NVC_BUILD_IDS=$(scripts/build/ids.sh "$built") cargo build --release --locked $programs -p nvc-runtime
if [ "$out" != "$built" ]; then
  mkdir -p "$out"
  find "$built" -maxdepth 1 -type f \( -name 'nvidia-*' -o -name gpu-kubelet-plugin \) ! -name '*.d' -exec cp -p -t "$out" {} +
fi
for program in nvidia-ctk nvidia-cdi-hook gpu-kubelet-plugin; do
  scripts/build/check-static.sh "$out/$program"
done
# Engines start it with every container (docs/performance.md, Sizes).
size=$(stat -c %s "$out/nvidia-cdi-hook")
[ "$size" -lt 3000000 ] || { echo "build/all.sh: nvidia-cdi-hook has $size bytes; it must stay below 3 MB" >&2; exit 1; }
scripts/build/capi.sh

# It needs no optimisation, but another profile would compile clap again.
env -u CARGO_BUILD_TARGET cargo build --release --locked -p nvc-pages
share=$out/share
rm -rf "$share"
"$target/release/nvc-pages" "$share" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
mkdir -p "$share/man/man3" "$share/doc" "$share/nvidia-container-toolkit"
scripts/build/ids.sh "$out" > "$share/nvidia-container-toolkit/build-ids"
sed "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/; s/@VERSION@/$version/" pkg/man/nvc.3 > "$share/man/man3/nvc.3"
mkdir -p "$share/man/man8"
for page in nvidia-cdi-hook.8 nvidia-docker.1 nvidia-docker-plugin.8 nvidia-container-runtime.8 nvidia-container-runtime-hook.8; do
  sed "s/@DATE@/$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)/; s/@VERSION@/$version/" "pkg/man/$page" > "$share/man/man${page##*.}/$page"
done
scripts/build/third-party.sh > "$share/doc/THIRD-PARTY"
