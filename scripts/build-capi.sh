#!/bin/sh
# Builds the C library: shared object, archive, pkg-config file, and the program nvc-query that they execute.
#
#   scripts/build-capi.sh [--debug]
#
# rustc makes an archive of everything; the system's compiler links the shared object from it, since rustc cannot give
# symbols versions. Results, in target/release (or target/debug, as the tests use it):
#
#   libnvidia-container.so.VERSION  with links .so.1 and .so    libnvidia-container.a    libnvidia-container.pc    nvc-query
#   libnvidia-container-go.so.VERSION  with a link .so.1: empty, for installers that copy upstream's two libraries by name
#
# Environment: PREFIX (/usr/local), LIBDIR ($PREFIX/lib), INCLUDEDIR ($PREFIX/include), LIBEXECDIR ($PREFIX/libexec): what the
# .pc file says, and where the archive's users have $LIBEXECDIR/libnvidia-container/nvc-query.
#              CC, OBJCOPY, STRIP; SOURCE_DATE_EPOCH (the commit's date); CARGO_TARGET_DIR
set -eu

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

profile=release
[ "${1:-}" != --debug ] || profile=debug
. scripts/place.sh
: "${CC:=cc}" "${OBJCOPY:=objcopy}" "${STRIP:=strip}"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
soname=libnvidia-container.so.${version%%.*}
out=${CARGO_TARGET_DIR:-target}/$profile

# ---- Rust ------------------------------------------------------------------------------------------------------------

export NVC_LIBEXECDIR="$LIBEXECDIR/libnvidia-container"
if [ "$profile" = release ]; then
  if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
  fi
  export SOURCE_DATE_EPOCH
  # The same bytes wherever it is built.
  home=${CARGO_HOME:-$HOME/.cargo}
  export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=. --remap-path-prefix=$home=cargo"
  cargo build --release -p libnvidia-container
else
  cargo build -p libnvidia-container
fi

# ---- shared object ---------------------------------------------------------------------------------------------------

symbols=$(sed -n 's/^ *\(nvc_[a-z_0-9]*\);$/\1/p' pkg/libnvc.map)
# What an archive of Rust needs: rustc --print native-static-libs.
system="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
roots=
for symbol in $symbols; do roots="$roots -Wl,-u,$symbol"; done

work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-capi.XXXXXX")
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # several words each
"$CC" -shared -o "$work/so" \
  -Wl,-soname,"$soname" -Wl,--version-script=pkg/libnvc.map \
  $roots -Wl,-u,NVC_INTERPRETER -Wl,--entry=nvc_entrypoint \
  -Wl,-z,relro -Wl,-z,now -Wl,-z,text -Wl,-z,defs -Wl,-z,noexecstack -Wl,-z,nodelete \
  -Wl,--gc-sections -Wl,--as-needed -Wl,--build-id=sha1 -Wl,--hash-style=gnu \
  "$out/libnvidia_container.a" $system ${LDFLAGS:-}
"$STRIP" --strip-unneeded "$work/so"
chmod 755 "$work/so"

# ---- a library of upstream's that is part of the other one here: nothing but its name -------------------------------------

"$CC" -shared -nostdlib -o "$work/go" -Wl,-soname,"libnvidia-container-go.so.${version%%.*}" \
  -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,--build-id=sha1 -Wl,--hash-style=gnu -x c /dev/null
"$STRIP" --strip-unneeded "$work/go"
chmod 755 "$work/go"

# ---- archive: one object with nothing but the interface, so that it gets on with any other Rust in the program ---------

roots=
keep=
for symbol in $symbols; do
  roots="$roots -Wl,-u,$symbol"
  keep="$keep --keep-global-symbol=$symbol"
done
# shellcheck disable=SC2086
"$CC" -r -nostdlib -Wl,--gc-sections $roots -o "$work/libnvidia-container.o" "$out/libnvidia_container.a"
# Bitcode of the standard library would be of no use, and makes linkers with an older LLVM fail.
# shellcheck disable=SC2086
"$OBJCOPY" $keep --strip-debug --remove-section=.interp --remove-section=.llvmbc \
  --remove-section=.llvmcmd "$work/libnvidia-container.o"
rm -f "$work/a"
ar rcsD "$work/a" "$work/libnvidia-container.o"

# ---- together --------------------------------------------------------------------------------------------------------

sed -e "s|@PREFIX@|$PREFIX|; s|@LIBDIR@|$LIBDIR|; s|@INCLUDEDIR@|$INCLUDEDIR|; s|@VERSION@|$version|" \
  -e "s|@LIBEXECDIR@|$LIBEXECDIR|; s|@LIBS_PRIVATE@|$system|" pkg/libnvidia-container.pc.in > "$work/pc"
scripts/check-elf.sh "$work/so" "$version"
# Renamed into place: a program that has the old one open keeps it.
place() { mv "$1" "$out/$2.new" && mv "$out/$2.new" "$out/$2"; }
place "$work/so" "libnvidia-container.so.$version"
place "$work/a" libnvidia-container.a
place "$work/pc" libnvidia-container.pc
place "$work/go" "libnvidia-container-go.so.$version"
ln -sf "libnvidia-container-go.so.$version" "$out/libnvidia-container-go.so.${version%%.*}"
ln -sf "libnvidia-container.so.$version" "$out/$soname"
ln -sf "$soname" "$out/libnvidia-container.so"
