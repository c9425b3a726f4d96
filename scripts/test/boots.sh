#!/bin/bash
# Boots machines of Debian whose services have GPUs, and looks whether each has its GPU afterwards: docs/engines.md,
# "GPU services at boot".
#
#   scripts/test/boots.sh [bookworm|trixie|forky]...       default: all
#
# Each machine is booted three times as it is, three times with a refresh that takes two seconds more, and three times
# with one that fails at first. Uses the roots of scripts/test/engines.sh. Needs root; NVC_PROFILE=debug tries unoptimised
# programs.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh

[ $# -gt 0 ] || set -- bookworm trixie forky
failed=()
for suite; do
  echo "== Debian $suite, systemd as PID 1"
  keep=
  boot "$suite"
  inside bash /srv/engines/boots.sh prepare || die "$suite has no services"
  keep=yes
  for kind in plain slow fails; do
    for number in 1 2 3; do
      inside bash /srv/engines/boots.sh refresh $kind
      halt
      boot "$suite"
      inside bash /srv/engines/boots.sh look $kind $number || failed+=("$suite $kind $number")
    done
  done
  halt
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
echo "boots: all right"
