# Sourced in the repository's root: the single definition of the place of installation. nvidia-ctk and programs that link
# the static library look for nvc-query there.
# shellcheck shell=sh disable=SC2034 # used by the sourcing script

PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
LIBEXECDIR=${LIBEXECDIR:-$PREFIX/libexec}
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
