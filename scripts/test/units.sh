#!/bin/bash
# Runs the packages' systemd units under systemd as PID 1, in machines of Debian with docker and a simulated driver:
# boot order, the path unit, the timer's service, the udev rule, daemon-reload while GPU containers run, the plugin's
# socket; then a driver update, a change of MIG devices and new major numbers.
#
#   scripts/test/units.sh [bookworm] [trixie] [forky]      default: the first two
#
# Uses the roots of scripts/test/engines.sh. Needs root. NVC_PACKAGES=1 installs the packages of target/packages instead
# of programs and units (scripts/packages/build.sh builds them). NVC_PROFILE=debug tries unoptimised programs;
# NVC_UNITS_SHELL=1 opens a shell in the machine at the end.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh

# The driver that an update brings.
"$bin/nvc-simdriver" profile debian | sed 's/^driver=.*/driver=575.57.08/' > "$work/new-profile"
"$bin/nvc-simdriver" build "$work/driver/srv-new" --profile "$work/new-profile" > /dev/null
mv "$work/driver/srv-new" "$work/image-new-driver"
mv "$work/image-new-driver" "$work/engines/new-driver"

[ $# -gt 0 ] || set -- bookworm trixie
for suite; do
  echo "== Debian $suite, systemd as PID 1"
  boot "$suite"
  inside NVC_UNITS_SHELL="${NVC_UNITS_SHELL:-}" bash /srv/engines/units.sh || {
    echo "-- console"
    tail -n 30 "$work/console"
    exit 1
  }
  halt
done
