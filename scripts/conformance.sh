#!/bin/bash
# Compares the release binary with recorded results of upstream, but for the differences that are on purpose.
#
#   scripts/conformance.sh [ARGUMENTS OF run.sh]
#
# Needs ../shared/conformance and root; the first run fetches 300 MB of Debian packages.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/.."
suite=../shared/conformance
[ -x $suite/run.sh ] || { echo "conformance.sh: no $suite" >&2; exit 2; }
cargo build --release -p nvc-cli
$suite/fixture.sh
exec $suite/run.sh -b "${CARGO_TARGET_DIR:-target}/release/nvidia-container-cli" --accepted docs/conformance-accepted "$@"
