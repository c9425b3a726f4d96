#!/bin/sh
# Fails unless a program is linked statically: it has no interpreter and needs no library.
#
#   scripts/build/check-static.sh PROGRAM
#
# Engines start createContainer hooks as root, and some with the container's environment, by which a dynamic program
# would load what the image wants.
set -eu

headers=$(LC_ALL=C readelf -lWd "$1")
case $headers in
  *INTERP* | *'(NEEDED)'*) echo "check-static: $1 is linked dynamically" >&2; exit 1 ;;
esac
