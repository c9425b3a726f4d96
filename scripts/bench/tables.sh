#!/bin/bash
# Measures the release binary and writes the tables of docs/performance.md, which explains them.
#
#   scripts/bench/tables.sh [OPTIONS OF nvc-bench]
#
# Needs root. Uses the fixture of ../shared/conformance and the real images of scripts/bench/images.sh, if they exist.
# NVC_BENCH_RUNS=N: runs of each command, default 200. BENCH_AGAINST=PROGRAM: another nvidia-container-cli, in
# alternation.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
[ "$(id -u)" = 0 ] || { echo "bench/tables.sh: needs root" >&2; exit 2; }
target=${CARGO_TARGET_DIR:-target}
program=$target/release/nvidia-container-cli
cargo build --release -p nvc-cli
cargo build -p nvc-testkit --bin nvc-bench
[ ! -x ../shared/conformance/fixture.sh ] || ../shared/conformance/fixture.sh

# The figures are of the programs that were built just now.
NVC_BENCH_COMMIT=$(git describe --always --dirty --exclude '*' 2> /dev/null || echo 'an unnamed commit')
export NVC_BENCH_COMMIT
options=(--runs "${NVC_BENCH_RUNS:-200}" --write .)
[ -z "${BENCH_AGAINST:-}" ] || options+=(--against "$BENCH_AGAINST")
exec "$target/debug/nvc-bench" "${options[@]}" "$@" "$program"
