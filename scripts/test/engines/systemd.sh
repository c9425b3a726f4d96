#!/bin/bash
# Checks which way to a GPU keeps it over which event, in a machine that systemd runs; for scripts/test/engines.sh.
#
# ways/table says what is expected of each engine, way and event; ways/ENGINE.sh knows the engine's commands:
#
#   up, down           start and stop the engine
#   start WAY GPU      starts the container `c`; in_it COMMAND... runs a command in it; remove removes it
#   unit               prints its systemd unit, if it has one
#   cannot             prints why this machine cannot run the engine (optional)
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
  grep -qE "^$engine +[a-z-]+ +([a-z,]*,)?($suite|all)[, ]" /srv/engines/ways/table || continue
  (try_engine)
done
# shellcheck source=scripts/test/engines/untouched.sh
! wanted untouched || (. /srv/engines/untouched.sh && run_untouched)
[ -z "${NVC_ENGINES_SHELL:-}" ] || bash <&3
passed=$(grep -c ok /run/counts) failed=$(grep -c FAILED /run/counts) skipped=$(grep -c SKIPPED /run/counts)
echo "$passed passed, $failed failed, $skipped not possible on this machine"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
