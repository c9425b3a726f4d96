#!/bin/sh
# Builds the C library: shared object, archive, pkg-config file, and nvc-query, which the library executes.
#
#   scripts/build/capi.sh [--debug]
#
# rustc builds an archive; the system's compiler links the shared object from it, since rustc cannot version symbols.
# Results, in target/release (or target/debug, as the tests use it):
#
#   libnvidia-container.so.VERSION  with links .so.1 and .so    libnvidia-container.a    libnvidia-container.pc    nvc-query
#   libnvidia-container-go.so.VERSION  with a link .so.1: empty, for installers that copy upstream's two libraries by name
#
# Environment: PREFIX (/usr/local), LIBDIR ($PREFIX/lib), INCLUDEDIR ($PREFIX/include), LIBEXECDIR ($PREFIX/libexec):
# paths for the .pc file, and for programs that link the archive, which look for
# $LIBEXECDIR/libnvidia-container/nvc-query.
#              CC, OBJCOPY, STRIP; SOURCE_DATE_EPOCH (the commit's date); CARGO_TARGET_DIR; NVC_OUT, as for all.sh
set -eu

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/../.."
# Services and jobs may lack it.
HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
export HOME
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
export PATH

profile=release
[ "${1:-}" != --debug ] || profile=debug
. scripts/build/place.sh
: "${CC:=cc}" "${OBJCOPY:=objcopy}" "${STRIP:=strip}"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
soname=libnvidia-container.so.${version%%.*}
. scripts/build/cross.sh
built=${CARGO_TARGET_DIR:-target}/${triple:+$triple/}$profile
out=${NVC_OUT:-$built}
mkdir -p "$out"

# ---- Rust ------------------------------------------------------------------------------------------------------------

export NVC_LIBEXECDIR="$LIBEXECDIR/libnvidia-container"
if [ "$profile" = release ]; then
  if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
  fi
  export SOURCE_DATE_EPOCH
  # Reproducible: the same bytes in every build directory.
  home=${CARGO_HOME:-$HOME/.cargo}
  export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=. --remap-path-prefix=$home=cargo"
  cargo build --release -p libnvidia-container
else
  cargo build -p libnvidia-container
fi

# ---- shared object ---------------------------------------------------------------------------------------------------

symbols=$(sed -n 's/^ *\(nvc_[a-z_0-9]*\);$/\1/p' pkg/libnvc.map)
# Libraries that a Rust archive needs: rustc --print native-static-libs.
system="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
# For programs that link the archive, also with -static, for which there is no libgcc_s.
private="-lgcc_eh -lutil -lrt -lpthread -lm -ldl -lc"
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
  "$built/libnvidia_container.a" $system ${LDFLAGS:-}
"$STRIP" --strip-unneeded "$work/so"
chmod 755 "$work/so"

# ---- an empty library with the name of upstream's second one, whose code is part of the first here -------------------

"$CC" -shared -nostdlib -o "$work/go" -Wl,-soname,"libnvidia-container-go.so.${version%%.*}" \
  -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,--build-id=sha1 -Wl,--hash-style=gnu -x c /dev/null
"$STRIP" --strip-unneeded "$work/go"
chmod 755 "$work/go"

# ---- archive: one object with only the interface, so that it does not clash with other Rust code in a program ----------

roots=
keep=
for symbol in $symbols; do
  roots="$roots -Wl,-u,$symbol"
  keep="$keep --keep-global-symbol=$symbol"
done
# shellcheck disable=SC2086
"$CC" -r -nostdlib -Wl,--gc-sections $roots -o "$work/libnvidia-container.o" "$built/libnvidia_container.a"
# The standard library's bitcode is unused, and linkers with an older LLVM fail on it.
# shellcheck disable=SC2086
"$OBJCOPY" $keep --strip-debug --remove-section=.interp --remove-section=.llvmbc \
  --remove-section=.llvmcmd "$work/libnvidia-container.o"
rm -f "$work/a"
"${AR:-ar}" rcsD "$work/a" "$work/libnvidia-container.o"

# ---- together --------------------------------------------------------------------------------------------------------

sed -e "s|@PREFIX@|$PREFIX|; s|@LIBDIR@|$LIBDIR|; s|@INCLUDEDIR@|$INCLUDEDIR|; s|@VERSION@|$version|" \
  -e "s|@LIBEXECDIR@|$LIBEXECDIR|; s|@LIBS_PRIVATE@|$private|" pkg/libnvidia-container.pc.in > "$work/pc"
RUN=$run scripts/build/check-elf.sh "$work/so" "$version"
# A rename, so that a program with the old file open keeps it.
place() { mv "$1" "$out/$2.new" && mv "$out/$2.new" "$out/$2"; }
[ "$out" = "$built" ] || cp -p "$built/nvc-query" "$out/"
place "$work/so" "libnvidia-container.so.$version"
place "$work/a" libnvidia-container.a
place "$work/pc" libnvidia-container.pc
place "$work/go" "libnvidia-container-go.so.$version"
ln -sf "libnvidia-container-go.so.$version" "$out/libnvidia-container-go.so.${version%%.*}"
ln -sf "libnvidia-container.so.$version" "$out/$soname"
ln -sf "$soname" "$out/libnvidia-container.so"
