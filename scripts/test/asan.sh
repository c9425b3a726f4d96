#!/bin/bash
# Builds the C library itself with the address sanitizer and runs the C programs of the tests with it. This checks the
# library's unsafe code and its callers at the same time.
#
#   scripts/test/asan.sh      (as root; needs a nightly compiler, or one that takes RUSTC_BOOTSTRAP=1, and clang)
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
PATH=$PATH:${CARGO_HOME:-~/.cargo}/bin
cargo=(cargo)
if cargo +nightly --version >/dev/null 2>&1; then
  cargo=(cargo +nightly)
else
  export RUSTC_BOOTSTRAP=1
fi
host=$("${cargo[@]}" -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/asan
out=$target/$host/debug

RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address -Cforce-frame-pointers=yes" \
  "${cargo[@]}" build -p libnvidia-container --target "$host" --target-dir "$target"
# The program provides the sanitizer's functions, so the library may lack them.
symbols=$(sed -n 's/^ *\(nvc_[a-z_0-9]*\);$/-Wl,-u,\1/p' pkg/libnvc.map)
# shellcheck disable=SC2086 # several words
cc -shared -o "$out/libnvidia-container.so.1" -Wl,-soname,libnvidia-container.so.1 \
  -Wl,--version-script=pkg/libnvc.map $symbols -Wl,-u,NVC_INTERPRETER "$out/libnvidia_container.a" \
  -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
ln -sf libnvidia-container.so.1 "$out/libnvidia-container.so"
nm -D "$out/libnvidia-container.so.1" | grep -q ' U __asan_' || { echo "test/asan.sh: the library is not instrumented" >&2; exit 1; }

cargo build --workspace
NVC_LIB_DIR=$(readlink -f "$out") NVC_CLI=$(readlink -f "${CARGO_TARGET_DIR:-target}/debug/nvidia-container-cli") \
  cargo test -p nvc-tests --test capi -- clang_sanitizers "$@"
