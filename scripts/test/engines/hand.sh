#!/bin/bash
# Makes a container by hand within a unit of systemd, for handmade.sh.
#
#   hand.sh alone|beside|worker|supervised ROOT
#
#   alone        the unit's only process is the container's
#   beside       in the same cgroup is another process
#   worker       this program stays in the unit's cgroup, and the container is in one below
#   supervised   this program is in a cgroup below, and the container in another, as with systemd-nspawn
set -eu

unit=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
# Runs as the container's first process.
# shellcheck disable=SC2016 # expanded by that shell
enter='
[ -z "$2" ] || echo 0 > "$2/cgroup.procs"
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
# A kernel with the modules shows it in every procfs.
mount --bind /srv/sim/proc/driver "$1/proc/driver"
exec sleep 10000'
case $1 in
  alone) exec unshare --mount --propagation private bash -euc "$enter" bash "$2" "" ;;
  beside) group= ;;
  worker) group=$unit/job ;;
  supervised)
    mkdir "$unit/supervisor"
    echo $$ > "$unit/supervisor/cgroup.procs"
    group=$unit/payload
    ;;
esac
[ -z "$group" ] || mkdir "$group"
# This program stays outside the container's namespaces.
unshare --mount --pid --propagation private --fork --kill-child bash -euc "$enter" bash "$2" "$group" &
wait
