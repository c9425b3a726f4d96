#!/bin/bash
# Runs the recipes of docs/recipes.md that need systemd, as they stand there, in a Debian root that systemd runs.
#
#   scripts/test/recipes.sh [bookworm|trixie|forky]...
#
# The others are tests of `make test`. See scripts/test/engines.sh for what it needs and for the variables.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh
[ $# -gt 0 ] || set -- trixie
cp docs/recipes.md "$work/engines/"
on_booted recipes "$@"
