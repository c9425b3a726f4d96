#!/bin/sh
# Prints the record by which our programs know each other: lines of `BUILD-ID NAME` (see toolkit/nvc-hostfile/src/ours.rs).
#
#   scripts/build/ids.sh DIRECTORY     the directory of the programs
#
# It belongs at ../share/nvidia-container-toolkit/build-ids from there. Without it every program is taken for foreign: the
# hook executes nvidia-container-cli, and the runtime refuses GPU containers, unless all.sh has put the record
# into the runtime.
set -eu

[ $# = 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
for name in nvidia-container-cli nvidia-container-runtime-hook nvidia-cdi-hook nvidia-ctk; do
  id=$(LC_ALL=C readelf -n "$1/$name" | sed -n 's/^ *Build ID: //p')
  [ "$id" ] || { echo "build-ids: $1/$name has no GNU build id" >&2; exit 1; }
  echo "$id $name"
done
