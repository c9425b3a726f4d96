#!/bin/bash
# Boots a Kubernetes in the machine that scripts/test/kubernetes.sh has entered, and checks our driver on it. Each check
# is one line; any that failed decides the exit status.
set -uo pipefail
exec 3<&0 < /dev/null

. /srv/engines/look.sh
. /srv/engines/cluster.sh
. /srv/engines/kubernetes-checks.sh

milliseconds() { # COMMAND...: says how long it took, in $took
  local from
  from=$(date +%s%N)
  "$@"
  local status=$?
  took=$((($(date +%s%N) - from) / 1000000))
  return $status
}

took=
milliseconds cluster
title "$(kubelet --version), containerd $(containerd --version | cut -d' ' -f3), $(runc --version | head -1), ready after $took ms"
for name in $(declare -F | awk '$3 ~ /^test_/ { print $3 }' | sort); do
  [ $# = 0 ] || case " $* " in *" ${name#test_?_} "*) ;; *) [ "$name" = test_0_install ] || continue ;; esac
  title "${name#test_?_}"
  $name
  # Nothing works on a cluster that is not whole.
  [ $name != test_0_install ] || [ $wrong = 0 ] || break
done
if [ $wrong != 0 ]; then
  title "the driver's log"
  driver_log | tail -n 40
fi
if [ -n "${NVC_KUBERNETES_SHELL:-}" ]; then bash <&3; fi
echo "-- $tried checks, $wrong wrong"
[ $wrong = 0 ]
