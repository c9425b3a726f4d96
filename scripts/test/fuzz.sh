#!/bin/bash
# Runs the fuzz targets, two at a time: each for some seconds, from the corpus in the repository.
#
#   scripts/test/fuzz.sh [--keep] [SECONDS] [TARGET...]
#
# SECONDS of CPU time for each, default 20. A finding ends that target and fails the script; its input is in
# fuzz/artifacts/TARGET. New inputs are discarded, unless --keep adds them to fuzz/corpus/TARGET and minimises that.
# Prints a line for each target: runs, seconds, coverage. Needs cargo-fuzz, which is installed if it is missing, and a
# nightly compiler or one that takes RUSTC_BOOTSTRAP=1.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
PATH=$PATH:${CARGO_HOME:-~/.cargo}/bin
export PATH

keep=
[ "${1:-}" != --keep ] || { keep=1; shift; }
seconds=20
case ${1:-} in [0-9]*) seconds=$1; shift ;; esac

command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
fuzz=(cargo fuzz)
if cargo +nightly --version >/dev/null 2>&1; then
  fuzz=(cargo +nightly fuzz)
else
  export RUSTC_BOOTSTRAP=1
fi

"${fuzz[@]}" build
mapfile -t known < <("${fuzz[@]}" list)
targets=("$@")
[ $# -gt 0 ] || targets=("${known[@]}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs a target in slices until its CPU time is used up: libFuzzer's own limit is wall-clock time.
run() {
  local target=$1 dir=$work/$1 binary used=0 runs=0 coverage=0 status=0 times
  binary=fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release/$target
  mkdir -p "$dir/new" "fuzz/artifacts/$target" "fuzz/corpus/$target"
  local options=(-rss_limit_mb=512 -malloc_limit_mb=128 -timeout=60 -report_slow_units=5 -print_final_stats=1 -use_value_profile=1
    -artifact_prefix="fuzz/artifacts/$target/")
  [ ! -f "fuzz/dictionaries/$target.dict" ] || options+=(-dict="fuzz/dictionaries/$target.dict")
  while [ "${used%.*}" -lt "$seconds" ]; do
    local slice=$((seconds - ${used%.*}))
    [ "$slice" -gt 1 ] || slice=1
    TIMEFORMAT='%U'
    # The last lines contain the error.
    { time "$binary" "${options[@]}" -max_total_time=$slice "$dir/new" "fuzz/corpus/$target" > "$dir/log" 2>&1 || status=$?; } 2> "$dir/time"
    used=$(awk -v a="$used" -v b="$(tail -1 "$dir/time")" 'BEGIN { print a + b }')
    times=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/log")
    runs=$((runs + ${times:-0}))
    coverage=$(grep -o 'cov: [0-9]*' "$dir/log" | tail -1 | cut -d' ' -f2)
    [ $status = 0 ] || break
  done
  if [ $status != 0 ]; then
    tail -40 "$dir/log"
    printf '%-16s FAILED, see fuzz/artifacts/%s\n' "$target" "$target"
    return 1
  fi
  printf '%-16s %10d runs %8.0f s processor time, coverage %s\n' "$target" "$runs" "$used" "${coverage:-?}"
  if [ -n "$keep" ]; then
    mkdir "$dir/least"
    "$binary" -merge=1 -use_counters=0 "$dir/least" "fuzz/corpus/$target" "$dir/new" > "$dir/log" 2>&1 || return 1
    rm -rf "fuzz/corpus/$target"
    mv "$dir/least" "fuzz/corpus/$target"
  fi
}

failed=0
active=0
for target in "${targets[@]}"; do
  if [ $active -ge 2 ]; then
    wait -n || failed=$((failed + 1))
    active=$((active - 1))
  fi
  run "$target" &
  active=$((active + 1))
done
while [ $active -gt 0 ]; do
  wait -n || failed=$((failed + 1))
  active=$((active - 1))
done
[ $failed = 0 ] || { echo "test/fuzz.sh: $failed of ${#targets[@]} targets failed" >&2; exit 1; }
