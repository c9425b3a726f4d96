#!/bin/bash
# Boots machines of Debian whose services have GPUs, and looks whether each has its GPU afterwards: docs/engines.md,
# "GPU services at boot". Prints that section's table; with all three suites, the document must have it.
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
cp docs/engines.md "$work/engines/"
# The process of podman's pods, which these roots lack.
echo 'int main(void) { for (;;) pause(); }' | cc -static -include unistd.h -o "$work/engines/catatonit" -x c -
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
  inside sed "s/^/$suite|/" /srv/cells >> "$work/cells"
  halt
done
# Of three boots, on each suite.
LC_ALL=C sort -t '|' -k 2 "$work/cells" | awk -F'|' -v suites="$*" '
  !($2 in seen) { seen[$2] = 1; order[++rows] = $2 }
  { tried[$1, $2, $3] = 1; boots[$1, $2, $3] += $4 == "+" }
  END {
    split("plain slow fails", kind, " ")
    number = split(suites, suite, " ")
    print "| service | as it is | 2 s more | the first try fails |"
    print "| --- | --- | --- | --- |"
    for (row = 1; row <= rows; row++) {
      line = "| " order[row]
      for (k = 1; k <= 3; k++) {
        cell = ""
        for (s = 1; s <= number; s++) {
          key = suite[s] SUBSEP order[row] SUBSEP kind[k]
          cell = cell " " (key in tried ? boots[key] + 0 : ".")
        }
        line = line " |" cell
      }
      print line " |"
    }
  }' | tee "$work/table.md"
if [ "$*" = "bookworm trixie forky" ]; then
  while IFS= read -r row; do
    grep -qxF -- "$row" docs/engines.md || failed+=("docs/engines.md lacks this row: $row")
  done < "$work/table.md"
fi
[ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
echo "boots: all right"
