#!/bin/bash
# Builds everything and runs all tests; ends with a summary of failed and skipped tests, with reasons.
#
#   scripts/test.sh [ARGUMENTS OF cargo test, instead of all]
#
# As root, also runs the privileged tests. A test that cannot run is skipped visibly; with CI=1 or NVC_TEST_NO_SKIPS=1
# that is a failure, unless NVC_TEST_ALLOWED_SKIPS (test names and needs, with commas) lists it.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-~/.cargo}/bin
[ -z "${SUDO_USER:-}" ] || PATH=$PATH:$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin
export PATH

scripts/setup.sh
scripts/setup.sh tests || echo "test.sh: without these, some tests of the C library are skipped" >&2
scripts/test/real-images.sh || echo "test.sh: without real images, a test of the builtin ldconfig is skipped" >&2
target=${CARGO_TARGET_DIR:-target}
# The end-to-end tests run the program, but cargo builds it only for tests of its own package.
cargo build --workspace
cargo build -p libnvidia-container --examples
scripts/build/capi.sh --debug
export NVC_CLI=${NVC_CLI:-$(readlink -f "$target/debug/nvidia-container-cli")}

log=$target/test.log
: > "$log"
status=0
run() { cargo test --no-fail-fast "$@" 2>&1 | tee -a "$log" || status=$?; }

if [ $# -gt 0 ]; then
  run "$@"
else
  libraries=(nvc-docker nvc-hostfile nvc-oci nvc-cdi nvc-policy nvc-generate)
  # The few unit tests that need root are ignored by default.
  ignored=()
  [ "$(id -u)" != 0 ] || ignored=(-- --include-ignored)
  run --package libnvc "${libraries[@]/#/--package=}" --lib "${ignored[@]}"
  run --package libnvc --test '*'
  run --package libnvc --doc
  run --workspace --exclude libnvc "${libraries[@]/#/--exclude=}"
  scripts/test/kernels.sh 2>&1 | tee -a "$log" || status=$?
fi

count() { sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'; }
echo
echo "== Summary: $(count passed) passed, $(count failed) failed, $(count ignored) skipped"
sed -n 's/^test \(.*[^ ]\) *\.\.\. FAILED$/failed \1/p; /^skipped /p' "$log" | sort -u
exit $status
