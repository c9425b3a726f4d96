#!/bin/sh
# Checks a built libnvidia-container.so against upstream's ABI and the rules of packagers.
#
#   [RUN=EMULATOR] scripts/build/check-elf.sh FILE VERSION
set -eu

file=$1 version=$2
map=$(dirname "$(readlink -f "$0")")/../../pkg/libnvc.map
export LC_ALL=C
failures=0
fail() { echo "check-elf: $file: $*" >&2; failures=$((failures + 1)); }

dynamic=$(readelf -Wd "$file")
headers=$(readelf -Wlh "$file")
sections=$(readelf -WS "$file")
has() { printf '%s\n' "$1" | grep -q "$2"; }

# SONAME and dependencies: only the C library's files and the compiler's runtime.
soname=$(printf '%s\n' "$dynamic" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[ "$soname" = "libnvidia-container.so.${version%%.*}" ] || fail "SONAME is '$soname'"
for needed in $(printf '%s\n' "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $needed in
    libc.so.6 | libgcc_s.so.1 | ld-linux-*.so.* | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1) ;;
    *) fail "needs $needed" ;;
  esac
done
! has "$dynamic" 'RPATH\|RUNPATH' || fail "has a run path"

# Exactly the functions of the map, at its version; readelf also lists the version itself, as an absolute symbol.
exports=$(readelf -W --dyn-syms "$file" |
  awk '$1 ~ /^[0-9]+:$/ && $5 != "LOCAL" && $7 != "UND" { print $4, $5, $8 }' | grep -v '^OBJECT GLOBAL NVC_1\.0$' | sort)
expected=$(sed -n 's/^ *\(nvc_[a-z_0-9]*\);$/FUNC GLOBAL \1@@NVC_1.0/p' "$map" | sort)
[ "$exports" = "$expected" ] || fail "exports other symbols than $map: $(printf '%s\n%s\n' "$exports" "$expected" |
  sort | uniq -u | tr '\n' ';')"
[ "$(grep -c '^ *nvc_' "$map")" = 26 ] || fail "the map has not 26 functions"

# Hardening.
! has "$dynamic" TEXTREL || fail "has text relocations"
has "$headers" GNU_RELRO || fail "has no RELRO segment"
has "$dynamic" 'BIND_NOW\|FLAGS.* NOW' || fail "is not bound at start: RELRO is partial"
! has "$headers" 'GNU_STACK.* RWE' || fail "has an executable stack"
has "$headers" GNU_STACK || fail "does not say that its stack is not executable"
! has "$headers" 'LOAD.* RWE' || fail "has a segment that is writable and executable"
! has "$sections" ' \.debug_\| \.symtab ' || fail "is not stripped"

# Executed directly, it prints its version.
# shellcheck disable=SC2086 # several words
lines=$(${RUN:-} "$file") || fail "cannot be run"
expected="version build_date build_revision build_compiler build_platform build_flags"
found=$(printf '%s\n' "$lines" | sed -n 's/^\([a-z ]*\): .*/\1/p' | tr ' ' '_' | tr '\n' ' ')
[ "${found% }" = "$expected" ] || fail "says '$lines' when run"
has "$lines" "^version: $version\$" || fail "is not version $version: $lines"

[ "$failures" = 0 ] || exit 1
