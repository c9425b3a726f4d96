#!/bin/bash
# Measures the release binary on the conformance fixture: times, system calls, processes, memory.
#
#   scripts/bench.sh [ARGUMENTS OF measure.sh]
#
# Needs ../shared/conformance and root. /bin/true and a bare ldconfig are timed in the same run: compare ratios, since
# machines differ and are noisy. BENCH_AGAINST=PROGRAM measures another nvidia-container-cli in turn.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/.."
suite=../shared/conformance
[ -x $suite/measure.sh ] || { echo "bench.sh: no $suite: the fixture is what the figures are measured on" >&2; exit 2; }
cargo build --release -p nvc-cli
$suite/fixture.sh
against=()
[ -z "${BENCH_AGAINST:-}" ] || against=(--against "$BENCH_AGAINST")
exec $suite/measure.sh -b "${CARGO_TARGET_DIR:-target}/release/nvidia-container-cli" "${against[@]}" "$@"
