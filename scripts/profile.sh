#!/bin/bash
# Shows where the time of `info`, `list` and `configure` goes, on a simulated driver: the time and the system calls of each
# phase in each process, and the critical path. Needs root, strace and python3; perf for times that are not stretched.
#
#   scripts/profile.sh [-n RUNS] [info|list|configure]...
#
# NVC_CLI and NVC_SIMDRIVER are the programs to use (default: built here). See CONTRIBUTING.md for how to read it.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/.."
[ "$(id -u)" = 0 ] || { echo "profile.sh: needs root" >&2; exit 2; }
for tool in strace python3; do
  command -v $tool > /dev/null || { echo "profile.sh: needs $tool" >&2; exit 2; }
done
target=${CARGO_TARGET_DIR:-target}
[ -n "${NVC_CLI:-}" ] || cargo build --release -p nvc-cli
[ -n "${NVC_SIMDRIVER:-}" ] || cargo build -p nvc-testkit --bin nvc-simdriver
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${NVC_SIMDRIVER:=$target/debug/nvc-simdriver}" build "$scratch/driver" > /dev/null
"$NVC_SIMDRIVER" rootfs "$scratch/template"
export NVC_CLI=${NVC_CLI:-$target/release/nvidia-container-cli} scratch

# The machine as it looks with the driver loaded, in here only; containers on a tmpfs, where making files is cheap.
unshare --mount --propagation private -- sh -euc '
  mount --bind "$scratch/driver/proc/devices" /proc/devices
  mkdir "$scratch/containers"
  mount -t tmpfs tmpfs "$scratch/containers"
  exec python3 -B scripts/profile.py --program="$(readlink -f "$NVC_CLI")" --driver="$scratch/driver" \
    --rootfs="$scratch/template" --scratch="$scratch/containers" --ldconfig=/sbin/ldconfig "$@"' sh "$@"
