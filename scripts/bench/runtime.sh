#!/bin/bash
# Measures the runtime hook, the OCI runtime and the CDI hook under runc: start-up, time added to a create, peak memory.
#
#   scripts/bench/runtime.sh [RUNS]
#
# All commands run in alternation, RUNS times (default 500), on the simulated driver, in separate mount and pid
# namespaces. Needs root, runc, a C compiler, and release builds (`make build` and nvc-testkit's programs).
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
if [ "${1:-}" != --inside ]; then
  work=$(mktemp -d -p /var/lib) # no driver may be below a directory of all users
  status=0
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "$0" --inside "$work" "$(readlink -f "${CARGO_TARGET_DIR:-target}")" "${1:-500}" || status=$?
  rm -rf --one-file-system "$work"
  exit $status
fi
work=$2 target=$3 runs=$4
BUILD=$target/release DESTDIR=$work/installed scripts/build/install.sh > "$work/log"
programs=$(dirname "$(find "$work/installed" -name nvidia-container-runtime)")
# shellcheck source=scripts/bench/programs.sh
. scripts/bench/programs.sh
# shellcheck source=scripts/demo/runtime-config.sh
. scripts/demo/runtime-config.sh
compile run
cc -O1 -o "$work/trace" shared/nvc-testkit/c/trace.c
for program in nvc-simdriver nvc-simruntime; do install "$(newer $program)" "$work/$program"; done
ln -s nvc-simruntime "$work/sim-runc"

driver=$work/driver
"$work/nvc-simdriver" build "$driver" > "$work/log"
mount --bind "$driver/proc/devices" /proc/devices
mount --bind "$driver/proc/driver" /proc/driver
mkdir "$work/bundle"
"$work/nvc-simdriver" rootfs "$work/bundle/rootfs"
(cd "$work/bundle" && runc spec)

config() { # NAME RUNTIME MODE: a configuration file
  runtime_config "$driver" "$programs" "$3" "$2" "$work/$1" > "$work/$1.toml"
}
config without "$(command -v runc)" auto
config version /bin/true auto
config legacy "$work/sim-runc" legacy
config jit "$work/sim-runc" auto
# A container with one GPU, on a machine with one and with 16, whose first handle takes 7 ms.
for gpus in 1 16; do
  "$work/nvc-simdriver" build "$work/machine$gpus" --size $gpus 0 > "$work/log"
  echo attach-ms=7 >> "$work/machine$gpus/etc/nvidia-sim/profile"
  driver=$work/machine$gpus config "legacy$gpus" "$work/sim-runc" legacy
  driver=$work/machine$gpus config "jit$gpus" "$work/sim-runc" auto
done
for hooks in separate merged; do
  config $hooks /bin/true cdi
  mkdir "$work/$hooks"
  "$programs/nvidia-ctk" --quiet cdi generate "--driver-root=$driver" "--nvidia-cdi-hook-path=$programs/nvidia-cdi-hook" \
    --hooks=$hooks "--output=$work/$hooks/nvidia.yaml"
done
exec python3 scripts/bench/runtime.py "$work" "$programs" "$runs"
