#!/bin/bash
# Purges the packages by apt on booted machines of Debian whose docker has the runtime as its default: afterwards docker
# starts containers, and what the administrator must do is said.
#
#   scripts/test/purge.sh [bookworm|trixie|forky]...       default: all
#
# Uses the roots of scripts/test/engines.sh. Needs root. NVC_PROFILE=debug tries unoptimised programs, in packages that
# have only them and the scripts of the packages; NVC_PACKAGES=1 the packages of target/packages.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh

[ $# -gt 0 ] || set -- bookworm trixie forky
on_booted purge "$@"
