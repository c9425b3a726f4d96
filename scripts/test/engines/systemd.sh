#!/bin/bash
# Checks which way to a GPU keeps it over which event, in a machine that systemd runs; for scripts/test/engines.sh.
#
# ways/table says what is expected of each engine, way and event; ways/ENGINE.sh knows the engine's commands:
#
#   up, down           start and stop the engine
#   start WAY GPU      starts the container `c`; in_it COMMAND... runs a command in it; remove removes it
#   unit               prints its systemd unit, if it has one
#   event_EVENT        causes an event that is the engine's own
#
# A container lives until an event takes its GPU. NVC_ENGINES_ONLY=docker,podman-crun,... checks these engines only.
set -uo pipefail
exec 3<&0 < /dev/null
. /srv/engines/look.sh
. /srv/engines/ways/common.sh

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-forky}")
title "$(systemctl --version | head -1), $(runc --version | head -1), $(crun --version | head -1)"
until_true 90 systemctl is-active -q multi-user.target docker.service || { systemctl --no-pager --failed; exit 1; }
: > /run/counts
for engine in $(awk '!/^#/ && NF && !seen[$1]++ { print $1 }' /srv/engines/ways/table); do
  wanted "$engine" || wanted "${engine%%-*}" || continue
  expected=$(cells_of "$engine")
  [ "$expected" != 0 ] || continue
  (try_engine)
  count "$engine" "$expected"
done
for more in untouched handmade apt; do
  wanted $more || continue
  (engine=$more && . "/srv/engines/$more.sh" && title $more && run_all)
  count $more "$(grep -cE '^  (expect|possible) ' "/srv/engines/$more.sh")"
done
[ -z "${NVC_ENGINES_SHELL:-}" ] || bash <&3
passed=$(results ok) failed=$(results FAILED) skipped=$(results SKIPPED)
echo "$passed passed, $failed failed, $skipped not possible on this machine"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
