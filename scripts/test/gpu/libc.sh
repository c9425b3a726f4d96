# Lets our programs run where the machine's C library cannot serve them: where it is not glibc, or older than the packing
# machine's. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# The packed libraries, then the places where some machines have the driver's outside of the loader's cache.
library_path=$work/root/lib:${LD_LIBRARY_PATH:-/none}:/usr/local/nvidia/lib64:/usr/lib64:/usr/lib/$triplet:/usr/lib64/nvidia:/usr/lib/wsl/lib

# Prints why a program of ours does not start; $work/err is what it said.
why_not() {
  version=$(sed -n "s/.*version .\(GLIBC_[0-9.]*\)' not found.*/\1/p" "$work/err" | sort -t . -k 2n | tail -n 1)
  if [ ! -e "$loader" ]; then
    echo "this machine has no glibc, whose loader is $loader"
  elif [ "$version" ]; then
    echo "the programs were packed for a newer glibc than this machine's, with $version"
  else
    echo "nvidia-container-cli does not start: $(head -n 1 "$work/err")"
  fi
}

# Writes a script that starts a program with the packed loader and C library.
start_packed() { # SCRIPT PROGRAM [OPTION OF THE LOADER]
  cat > "$1" <<END_OF_FILE
#!$work/bin/busybox sh
exec '$work/bin/nvc-ld.so' ${3:-} --library-path '$library_path' '$2' "\$@"
END_OF_FILE
  chmod 755 "$1"
}

# Lets them take the place of the dynamic programs.
use_packed_libc() {
  # Beside the programs, which look there for each other: the running program is the loader.
  cp "$work/root/lib/${loader##*/}" "$work/bin/nvc-ld.so"
  for program in nvidia-container-cli nvidia-container-runtime nvidia-container-runtime-hook nvc-query; do
    mv "$work/bin/$program" "$work/bin/$program.real"
    name=
    # It knows by this name that it was asked.
    [ $program != nvc-query ] || name="--argv0 'nvc:[driver]'"
    start_packed "$work/bin/$program" "$work/bin/$program.real" "$name"
  done
  # An older glibc is enough for nvidia-smi.
  if [ "$smi" ] && [ ! -e "$loader" ]; then
    start_packed "$work/nvidia-smi" "$smi"
    smi=$work/nvidia-smi
  fi
}

# Tests whether our programs start here, and helps them if not.
look_at_libc() {
  ! limit 20 "$cli" --version || return 0
  reason=$(why_not)
  use_packed_libc
  if limit 20 "$cli" --version; then
    say "OTHER C LIBRARY: $reason. The packed one takes its place."
    skip "our programs with the C library of this machine: $reason"
  else
    say "NO C LIBRARY: $reason, and the packed one does not run here: $(head -n 1 "$work/err")"
    skip "everything that needs a program of ours which loads NVML: $reason"
    gpus=
  fi
}
