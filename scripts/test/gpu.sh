#!/bin/sh
# Packs a folder that tests this project on a machine with a GPU, where neither make, cargo nor a network need exist:
# our programs, runc with its libraries, busybox, a small container root, and a check program of CUDA's driver API.
#
#   scripts/test/gpu.sh [--run]        packs target/test-gpu/nvc-test-gpu and nvc-test-gpu.tar.gz; --run runs it here
#
# On that machine, as root if possible:
#
#   tar xzf nvc-test-gpu.tar.gz && sh nvc-test-gpu/run.sh
#
# The programs are release builds; NVC_PROFILE=debug takes the debug builds that exist, as `make test` does.
# Environment: NVC_TEST_GPU_OUT   the directory to write, instead of target/test-gpu
set -eu

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
repository=$(cd "$here/../.." && pwd)
cd "$repository"
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-}/.cargo}/bin
export PATH LC_ALL=C
profile=${NVC_PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
out=${NVC_TEST_GPU_OUT:-$target/test-gpu}
folder=$out/nvc-test-gpu
most=50 # MB; a debug build is larger
[ "$profile" = release ] || most=80

fail() { echo "test/gpu.sh: $*" >&2; exit 1; }

case ${1:-} in
  '' | --run) ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
for need in cc ldd readelf strip runc busybox; do
  command -v $need >/dev/null || fail "$need is missing; this needs Debian's packages gcc, libc-bin, binutils, runc and busybox-static"
done
ldd "$(command -v busybox)" >/dev/null 2>&1 && fail "busybox is not static; Debian's package busybox-static has a static one"

programs="nvidia-container-cli nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook nvidia-ctk nvc-query"
if [ "$profile" = release ]; then
  scripts/build/all.sh
fi
for program in $programs; do
  [ -x "$target/$profile/$program" ] || fail "no $target/$profile/$program: build it first"
done

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/mnt" "$folder/lib" "$folder/root/bin" "$folder/root/lib" \
  "$folder/share/nvidia-container-toolkit"

# Copies the libraries of a program, and the loader, into a directory.
libraries_of() { # PROGRAM DIRECTORY
  ldd "$1" | sed -n 's/^[[:space:]]*\(.* => \)\{0,1\}\(\/[^ ]*\) (.*/\2/p' | while read -r library; do
    cp -L "$library" "$2/${library##*/}"
  done
}

for program in $programs; do
  strip -o "$folder/bin/$program" "$target/$profile/$program"
  # For machines without their C library, see gpu/libc.sh; static programs have none.
  ! ldd "$folder/bin/$program" >/dev/null 2>&1 || libraries_of "$folder/bin/$program" "$folder/root/lib"
done
# Our programs recognise each other by it.
scripts/build/ids.sh "$folder/bin" > "$folder/share/nvidia-container-toolkit/build-ids"
cp -L "$(command -v busybox)" "$folder/bin/busybox"

# The check program: in the container root it uses the root's C library, on the machine the same one by its loader.
cc -std=gnu11 -Wall -O1 -s -Ishared/nvc-testkit/c -o "$folder/root/bin/check" scripts/test/gpu/check.c -ldl
libraries_of "$folder/root/bin/check" "$folder/root/lib"
# What the driver's libraries need beside it; since glibc 2.34 most of it is in libc.so.6, but files still name it.
libc=$(ldd "$folder/root/bin/check" | sed -n 's/^.*libc\.so\.6 => \([^ ]*\) .*/\1/p')
for part in libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1; do
  cp -L "${libc%/*}/$part" "$folder/root/lib/"
done
ldconfig=/sbin/ldconfig.real
[ -e $ldconfig ] || ldconfig=/sbin/ldconfig
cp -L $ldconfig "$folder/root/bin/ldconfig"
loader=$(readelf -lW "$folder/root/bin/check" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
triplet=$(basename "${libc%/*}")

# runc starts itself again through /proc/self/exe, with an empty environment. So neither LD_LIBRARY_PATH nor a loader
# on the command line reaches it: its file names its loader and libraries, at places that run.sh fills. A name must not
# become longer.
runc=$(command -v runc)
libraries_of "$runc" "$folder/lib"
mv "$folder/lib/${loader##*/}" "$folder/lib/nvc-ld.so"
edit=
rename() { # OLD NEW
  [ ${#2} -le ${#1} ] || fail "$2 is longer than $1, so runc cannot name it"
  nuls=$(printf "%$((${#1} - ${#2}))s" '' | sed 's/ /\\x00/g')
  edit="$edit;s|$(printf %s "$1" | sed 's/\./\\./g')|$2$nuls|g"
}
rename "$loader" /tmp/nvc-ld.so
for needed in $(readelf -d "$runc" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $needed in
    libc.so.6) place=libc ;;
    libseccomp.so.2) place=nvc-sc.so2 ;;
    *) fail "runc needs $needed, for which this script has no place" ;;
  esac
  rename "$needed" /tmp/$place
  mv "$folder/lib/$needed" "$folder/lib/$place"
done
sed "${edit#;}" "$runc" > "$folder/bin/runc"
[ "$(wc -c < "$folder/bin/runc")" = "$(wc -c < "$(readlink -f "$runc")")" ] || fail "editing runc changed its size"

cp scripts/test/gpu/*.sh "$folder/"
cat > "$folder/packed" <<END_OF_FILE
revision=$(git describe --always --dirty 2>/dev/null || echo unknown)
profile=$profile
arch=$(uname -m)
loader=$loader
triplet=$triplet
END_OF_FILE
chmod -R u=rwX,go=rX "$folder"
chmod 755 "$folder"/bin/* "$folder"/root/bin/* "$folder"/lib/nvc-ld.so "$folder"/root/lib/ld-*

size=$(du -sm "$folder" | cut -f1)
[ "$size" -le $most ] || fail "$folder has $size MB, more than $most"
tar -C "$out" --owner=0 --group=0 -czf "$out/nvc-test-gpu.tar.gz" nvc-test-gpu
echo "$folder: $size MB; as one file: $out/nvc-test-gpu.tar.gz, $(du -m "$out/nvc-test-gpu.tar.gz" | cut -f1) MB"
if [ "${1:-}" = --run ]; then
  exec sh "$folder/run.sh"
fi
echo "On the machine with the GPU, as root if possible: tar xzf nvc-test-gpu.tar.gz && sh nvc-test-gpu/run.sh"
