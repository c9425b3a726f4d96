#!/bin/bash
# Runs our programs under other engines than this machine's: each engine of a Debian suite, in a root of its own.
#
#   scripts/test/engines.sh [bookworm|trixie|forky]...
#
# For each engine it prints the version and the result of each way to a GPU, and fails if one did not run. There are two
# parts. In the first (trixie and forky) engines are started by hand and make their own cgroups: engines/inside.sh. In
# the second (all suites) systemd is PID 1 and makes the cgroups, as on users' machines; each way must keep its GPU over
# the events that engines/ways/table names: engines/systemd.sh. It also checks which units systemd is told about
# (untouched.sh, handmade.sh), and apt in containers with volumes (apt.sh). Results are counted, so that one that is
# missing is a failure; what a machine cannot do is said, with the reason.
#
# A root is made by debootstrap once and kept in NVC_ENGINES_CACHE (/var/cache/nvc-engines); its changes go to a scratch
# directory. It is entered by pivot_root in namespaces of its own, with cgroups of version 2, our programs, and a
# simulated driver in place of a real one. Needs root, debootstrap and network the first time. NVC_PROFILE=debug tries
# unoptimised programs; NVC_ENGINES_PARTS=plain or systemd runs one part; NVC_ENGINES_ONLY=podman,... runs these groups
# of the first part and these engines, untouched, handmade and apt of the second only; NVC_ENGINES_SHELL=1 opens a shell at the end of each.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh
[ $# -gt 0 ] || set -- bookworm trixie forky
parts=${NVC_ENGINES_PARTS:-plain,systemd}
settings=(NVC_ENGINES_ONLY="${NVC_ENGINES_ONLY:-}" NVC_ENGINES_SHELL="${NVC_ENGINES_SHELL:-}")

# The table of ways and events in docs/engines.md is the one that is tested.
awk -f "$here/engines/ways/readme.awk" "$here/engines/ways/table" > "$work/table.md"
while IFS= read -r row; do
  grep -qxF -- "$row" docs/engines.md || die "docs/engines.md lacks this row of engines/ways/table: $row"
done < "$work/table.md"

failed=()
for suite; do
  case $parts,$suite in
    *bookworm) ;; # `make test` runs these engines, on a machine of Debian 12
    *plain*)
      echo "== Debian $suite"
      reference "$suite"
      install -m 755 "$cache/$suite.cdi-check" "$work/programs/cdi-check"
      play "$suite" "${settings[@]}" bash /srv/engines/inside.sh || failed+=("$suite")
      ;;
  esac
  case $parts in *systemd*)
    echo "== Debian $suite, systemd as PID 1"
    boot "$suite"
    inside "${settings[@]}" bash /srv/engines/systemd.sh || failed+=("$suite with systemd")
    halt
    ;;
  esac
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
echo "engines: all right"
