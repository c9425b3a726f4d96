#!/bin/bash
# Runs our programs under newer engines than this machine's: each engine of a Debian suite, in a root of its own.
#
#   scripts/test/engines.sh [trixie|forky]...
#
# For each engine it prints the version and the result of each way to a GPU, and fails if one did not run. A root is made
# by debootstrap once and kept in NVC_ENGINES_CACHE (/var/cache/nvc-engines); its changes go to a scratch directory. It is
# entered by pivot_root in namespaces of its own, with cgroups of version 2, our programs, and a simulated driver in
# place of a real one. Needs root, debootstrap and network the first time. NVC_PROFILE=debug tries unoptimised programs;
# NVC_ENGINES_ONLY=podman,... runs these groups only; NVC_ENGINES_SHELL=1 opens a shell at the end.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh
[ $# -gt 0 ] || set -- trixie forky

failed=()
for suite; do
  echo "== Debian $suite"
  reference "$suite"
  install -m 755 "$cache/$suite.cdi-check" "$work/programs/cdi-check"
  play "$suite" NVC_ENGINES_ONLY="${NVC_ENGINES_ONLY:-}" NVC_ENGINES_SHELL="${NVC_ENGINES_SHELL:-}" \
    bash /srv/engines/inside.sh || failed+=("$suite")
done
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
