#!/bin/sh
# Tests this project on a machine with an NVIDIA GPU, and writes a report to send. Packed by scripts/test/gpu.sh; needs
# no compiler, no network, and nothing of the machine but a shell.
#
#   sh run.sh [--simulated] [--mps]        as root if possible; less than 8 minutes
#
# The first lines say what cannot be tested here, and why. --simulated is for a simulated driver: it launches no kernel,
# and shows this procfs to containers. --mps starts a control daemon of MPS, if none runs, and ends it.
# Exit code: 0 if something was tested and nothing failed, 1 if a test failed, 2 for a wrong command line, 3 if nothing
# could be tested. The report has neither serial numbers, UUIDs nor host names (machine.sh), and only programs in this
# folder are run, besides nvidia-smi, engines, MPS, and upstream's to compare with. Nothing of the machine is changed: all is done in a separate mount namespace.
set -u

simulated='' mps='' stage=first
for option; do
  case $option in
    --simulated) simulated=--simulated ;;
    --mps) mps=--mps ;;
    --staged=*) stage=${option#--staged=} ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done

# ---- with the machine's shell: finds a place to run from ---------------------------------------------------------------

# Returns true if busybox of this folder, or a copy of it in another directory, can be executed.
works() { [ "$("$1" echo works 2>/dev/null)" = works ]; }

if [ $stage = first ]; then
  case $0 in */*) cd "${0%/*}" || exit 3 ;; esac
  here=$PWD
  . ./packed
  # A file system may be read-only; then the report is only printed.
  report=
  for place in "$here" "${OLDPWD:-$here}" "${HOME:-/}" /var/tmp; do
    file=$place/nvc-test-gpu-report.txt
    # No link is followed: the file is a new one, in place of an earlier report.
    if [ ! "$report" ] && [ -d "$place" ]; then
      rm -f "$file" 2>/dev/null || bin/busybox rm -f "$file" 2>/dev/null
      set -C
      if [ ! -e "$file" ] && [ ! -L "$file" ] && command exec 3> "$file"; then report=$file; fi 2>/dev/null
      set +C
    fi
  done
  [ "$report" ] || exec 3> /dev/null
  tell() { printf '%s\n' "$*"; printf '%s\n' "$*" >&3; }
  # A root with busybox alone may have it under that name only.
  machine=$(uname -m 2>/dev/null || bin/busybox uname -m 2>/dev/null || echo "of an unknown architecture")
  tell "nvc-test-gpu: revision $revision ($profile build), packed for $arch"
  if [ "$machine" != "$arch" ]; then
    tell "NOT TESTED: everything. This machine is $machine, and the folder was packed on $arch: its programs cannot run."
    tell "  Pack it on $machine: make test-gpu"
    exit 3
  fi
  work=
  busybox=bin/busybox
  if ! works "./$busybox"; then
    # The modes were lost, or the file system is mounted with noexec.
    for place in "${TMPDIR:-/tmp}" /var/tmp /dev/shm /run "${HOME:-/}"; do
      if [ ! "$work" ] && (umask 077 && mkdir "$place/nvc-test-gpu.$$") 2>/dev/null; then
        work=$place/nvc-test-gpu.$$
        cp bin/busybox "$work/busybox" && chmod 755 "$work/busybox"
        works "$work/busybox" || { rm -rf "$work"; work=; }
      fi
    done
    [ "$work" ] || { tell "NOT TESTED: everything. No directory here allows programs to be executed (noexec)."; exit 3; }
    busybox=$work/busybox
  else
    busybox=$here/$busybox
  fi
  export here report work busybox
  # As root in a mount namespace of our own, whose mounts are invisible outside and end with it.
  why=
  if [ "$("$busybox" id -u)" != 0 ]; then
    why="not root"
  elif ! why=$("$busybox" unshare -m --propagation private "$busybox" mount -t tmpfs tmpfs /tmp 2>&1); then
    why="no right to mount: ${why##*: }"
  else
    why=
  fi
  export why
  if [ "$why" ]; then
    "$busybox" sh ./run.sh --staged=second $simulated $mps
  else
    "$busybox" unshare -m --propagation private "$busybox" sh ./run.sh --staged=second $simulated $mps
  fi
  status=$?
  [ ! "$work" ] || "$busybox" rm -rf "$work" 2>/dev/null
  if [ "$report" ]; then
    echo "The report is $report"
  else
    echo "The report could be written nowhere: what was printed above is all of it."
  fi
  exit $status
fi

# ---- with our shell: the working directory is the folder, even if a mount hides it ---------------------------------------

. ./packed
umask 022
if [ ! "$why" ]; then
  # Programs and roots are on a file system of our own: executable, writable, with device nodes, only for root.
  # It comes to /tmp, where runc looks for its libraries.
  "$busybox" mount -t tmpfs -o mode=755 tmpfs ./mnt || exit 1
  "$busybox" mkdir -p ./mnt/nvc/tools
  if [ -d /tmp/nvidia-mps ]; then
    "$busybox" mkdir ./mnt/nvidia-mps
    "$busybox" mount --bind /tmp/nvidia-mps ./mnt/nvidia-mps
  fi
  work=/tmp/nvc place=./mnt/nvc
else
  for place in "$work" "${TMPDIR:-/tmp}" /var/tmp /dev/shm /run "${HOME:-/}"; do
    if [ ! "$work" ] && (umask 077 && "$busybox" mkdir "$place/nvc-test-gpu.$$") 2>/dev/null; then
      work=$place/nvc-test-gpu.$$
      trap '"$busybox" rm -rf "$work"' EXIT
    fi
  done
  [ "$work" ] || { echo "NOT TESTED: everything. No directory can be written."; exit 3; }
  "$busybox" mkdir -p "$work/tools"
  place=$work
fi
"$busybox" cp -r ./bin ./lib ./root ./share ./packed ./*.sh "$place/" || exit 1
"$busybox" chmod -R a+rX "$place"
"$busybox" chmod 755 "$place"/bin/* "$place"/root/bin/* "$place"/lib/* "$place"/root/lib/*
if [ ! "$why" ]; then
  "$busybox" cp "$place"/lib/* ./mnt/
  "$busybox" mount --move ./mnt /tmp || exit 1
fi
busybox=$work/bin/busybox
"$busybox" --install -s "$work/tools"
machine_path=$PATH
PATH=$work/tools
export PATH work busybox machine_path simulated mps
# The folder stays the working directory until here: it may be below the /tmp that is now hidden.
cd "$work" || exit 1

. ./result.sh
. ./libc.sh
. ./host.sh
. ./containers.sh
. ./capabilities.sh
. ./upstream.sh
. ./engines.sh
. ./layout.sh
. ./machine.sh

look_at_machine
look_at_libc
time_cold
if [ "$gpus" ]; then
  compare_info
  compare_list
  compare_specification
  compute_here
  test_containers
  test_capabilities
  test_many
  test_mps
  test_engines
  compare_upstream
  time_programs
  write_machine
fi
summary
