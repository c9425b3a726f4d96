#!/bin/bash
# Boots a Kubernetes in the machine that scripts/test/kubernetes.sh has entered, and checks our driver on it. Each check
# is one line; any that failed decides the exit status.
set -uo pipefail
exec 3<&0 < /dev/null

. /srv/engines/look.sh
. /srv/engines/cluster.sh

seconds() { echo $(($(date +%s%N) / 1000000)); }
booted=$(date +%s%N)
cluster
echo "-- $(kubelet --version), $(containerd --version | cut -d' ' -f3), $(runc --version | head -1), ready after $((($(date +%s%N) - booted) / 1000000)) ms"
if [ -n "${NVC_KUBERNETES_SHELL:-}" ]; then bash <&3; fi
[ $wrong = 0 ]
