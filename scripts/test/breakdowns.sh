#!/bin/bash
# Breaks booted machines of Debian in the ways of engines/breakdowns.sh: `nvidia-ctk doctor` must name each cause first, the
# printed repair, run as it is printed, must leave nothing to report, and a boot must not bring the fault back.
#
#   scripts/test/breakdowns.sh [bookworm|trixie|forky]...       default: trixie
#
# Uses the roots of scripts/test/engines.sh. Needs root; NVC_PROFILE=debug tries unoptimised programs; NVC_ROUNDS="4 5" runs
# these rounds alone.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh

# The simulated daemon and nvidia-modprobe do nothing.
rm "$work"/driver/usr/bin/nvidia-{persistenced,modprobe}
[ $# -gt 0 ] || set -- trixie
failed=()
for suite; do
  echo "== Debian $suite, systemd as PID 1"
  keep=
  boot "$suite"
  inside bash /srv/engines/breakdowns.sh prepare || die "$suite is not in order"
  keep=yes
  for round in ${NVC_ROUNDS:-$(inside bash /srv/engines/breakdowns.sh rounds)}; do
    inside bash /srv/engines/breakdowns.sh round "$round" || failed+=("$suite $round")
    halt
    boot "$suite"
    inside bash /srv/engines/breakdowns.sh after || failed+=("$suite after $round")
  done
  halt
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
echo "breakdowns: all right"
