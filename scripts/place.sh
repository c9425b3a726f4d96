# To be sourced in the repository's root: where things will be installed, decided here alone. Programs that are linked with
# the static library look for nvc-query there.
# shellcheck shell=sh disable=SC2034 # used by those who source it

PREFIX=${PREFIX:-/usr/local}
LIBDIR=${LIBDIR:-$PREFIX/lib}
LIBEXECDIR=${LIBEXECDIR:-$PREFIX/libexec}
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
