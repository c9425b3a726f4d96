#!/bin/bash
# Measures what telling systemd about a container's devices costs: `configure` of containers in closed units of a booted
# systemd, in alternation with and without the sockets in sight. Prints medians in ms.
#
#   scripts/bench/systemd.sh [SUITE] [RUNS]      default: trixie, 100
#
# Uses the roots of scripts/test/engines.sh, and the release build of nvidia-container-cli. Needs root.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")/../test" && pwd)
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh
install -m 755 "${CARGO_TARGET_DIR:-target}/release/nvidia-container-cli" "$work/programs/"
scripts/build/ids.sh "$work/programs" > "$work/share/build-ids"

# shellcheck disable=SC2016 # expanded in the machine
measure='
set -u
. /srv/engines/look.sh
. /srv/engines/handmade.sh
until_true 90 systemctl is-active -q multi-user.target || exit
# The time of one configuration, in microseconds, with that directory hidden.
# shellcheck disable=SC2016
timed() {
  make alone -p DevicePolicy=closed > /tmp/log 2>&1 || { cat /tmp/log >&2; exit 1; }
  unshare --mount --propagation private bash -c '\''
    mount -t tmpfs none "$1"
    start=$EPOCHREALTIME
    nvidia-container-cli configure "--pid=$2" --device=0 --utility /srv/hand || exit
    end=$EPOCHREALTIME
    echo $((${end/./} - ${start/./}))'\'' bash "$1" "$(first)" || exit
  case $1 in
    /mnt) list | grep -q 195 || { echo "systemd was not told" >&2; exit 1; } ;;
    *) ! list | grep 195 >&2 || exit ;;
  esac
  end > /tmp/log 2>&1
}
middle() { sort -n | awk "{ all[NR] = \$1 } END { printf \"%.2f\", all[int((NR + 1) / 2)] / 1000 }"; }
for run in $(seq "$1"); do
  with=$(timed /mnt) without=$(timed /run/systemd) || exit
  echo "$with $without $((with - without))"
done > /tmp/times
[ "$(wc -l < /tmp/times)" = "$1" ] || exit 1
for column in 1 2 3; do cut -d" " -f$column /tmp/times | middle; echo; done | paste -sd" "'
boot "${1:-trixie}"
echo "# systemd told, not there, median of the differences (ms)"
inside bash -c "$measure" bash "${2:-100}"
