#!/bin/bash
# Runs the integration tests of runc and of crun with the plain runtime, and with nvidia-container-runtime before it,
# without and with a request for GPUs, and compares test by test.
#
#   scripts/test/suites.sh [runc|crun] [FILE...]       all files of both suites, or those whose names contain a FILE
#
# The tests come from Debian's source packages of the installed runtimes, their images from busybox-static and
# debootstrap; both are kept in target/suites. The driver is simulated. Needs root, and a network once.
# Exit code: 0 if all tests that pass or are skipped plain do the same with ours, or are listed in suites/expected.
# Environment: NVC_PROFILE=debug   takes debug builds instead of release builds
#              NVC_SUITES_LOG=FILE   keeps what the tests print
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
cd "$here/../.."
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-~/.cargo}/bin
export PATH LC_ALL=C
profile=${NVC_PROFILE:-release}
target=$(readlink -f "${CARGO_TARGET_DIR:-target}")
kept=$target/suites

fail() { echo "suites.sh: $*" >&2; exit 1; }

# ---- outside: packages, sources, images ---------------------------------------------------------------------------------

# Fetches the source of an installed package: the same version has the tests that fit it.
source_of() { # PACKAGE
  [ ! -e "$kept/src/$1/.complete" ] || return 0
  local options=(-o "Dir::Etc::sourcelist=$kept/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$kept/lists")
  local release
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mkdir -p "$kept/lists/partial" "$kept/src"
  rm -rf "${kept:?}/src/$1"
  printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian %s main\n' \
    "$release" "$release-updates" > "$kept/sources.list"
  apt-get "${options[@]}" update -qq
  (cd "$kept/src" && rm -rf "$1"-[0-9]* && apt-get "${options[@]}" source -qq "$1" 2> "$kept/source.log") ||
    fail "no source of $1: $(tail -n 1 "$kept/source.log")"
  mv "$kept/src/$1"-[0-9]*/ "$kept/src/$1"
  touch "$kept/src/$1/.complete"
}

busybox_image() {
  local root=$kept/busybox
  [ ! -e "$kept/busybox.tar.xz" ] || return 0
  rm -rf "$root"
  mkdir -p "$root"/{bin,sbin,dev,proc,sys,etc,root,tmp,usr,var,home}
  cp -L "$(command -v busybox)" "$root/bin/busybox"
  "$root/bin/busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
  done
  chmod 1777 "$root/tmp"
  printf 'root:x:0:0:root:/root:/bin/sh\n' > "$root/etc/passwd"
  printf 'root:x:0:\n' > "$root/etc/group"
  tar -C "$root" -cJf "$kept/busybox.tar.xz.new" .
  mv "$kept/busybox.tar.xz.new" "$kept/busybox.tar.xz"
}

debian_image() {
  [ ! -e "$kept/debian.tar.xz" ] || return 0
  rm -rf "$kept/debian"
  unshare --mount debootstrap --variant=minbase bookworm "$kept/debian" > "$kept/debootstrap.log" 2>&1 ||
    fail "debootstrap failed: $(tail -n 1 "$kept/debootstrap.log")"
  tar -C "$kept/debian" -cJf "$kept/debian.tar.xz.new" .
  mv "$kept/debian.tar.xz.new" "$kept/debian.tar.xz"
  rm -rf "$kept/debian"
}

if [ "${1:-}" != --inside ]; then
  [ "$(id -u)" = 0 ] || fail "not root: the suites make containers"
  case ${1:-} in
    -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  scripts/setup.sh suites
  for program in nvidia-container-runtime nvidia-container-runtime-hook nvidia-container-cli nvidia-cdi-hook nvidia-ctk nvc-query \
    nvc-simdriver nvc-simruntime; do
    [ -x "$target/$profile/$program" ] || fail "no $target/$profile/$program: build it first (NVC_PROFILE=debug for debug builds)"
  done
  for runtime in runc crun; do source_of $runtime; done
  busybox_image
  debian_image
  # The tests take the images from these words, and a console from this program.
  sed 's/^  //' > "$kept/src/runc/tests/integration/get-images.sh" <<END_OF_FILE
  #!/bin/sh
  echo BUSYBOX_IMAGE=$kept/busybox.tar.xz
  echo DEBIAN_IMAGE=$kept/debian.tar.xz
END_OF_FILE
  cc -O1 -Wall -o "$kept/src/runc/contrib/cmd/recvtty/recvtty" "$here/suites/recvtty.c"
  echo '#define HAVE_ERROR_H 1' > "$kept/config.h"
  cc -static -w -I "$kept" -o "$kept/init" "$kept/src/crun/tests/init.c"
  work=$(mktemp -d -p /var/lib) # no driver may be below a directory of all users
  chmod 755 "$work"             # hooks of containers with a user namespace are executed there
  status=0
  unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    "$0" --inside "$work" "$@" || status=$?
  rm -rf --one-file-system "$work"
  exit $status
fi

# ---- inside: a machine with a simulated driver --------------------------------------------------------------------------

work=$2
shift 2
suites='runc crun'
case ${1:-} in runc | crun) suites=$1; shift ;; esac
chosen=("$@") files=("$@")
log=${NVC_SUITES_LOG:-/dev/null}

# Some tests give /dev to containers whose root takes over its nodes.
mkdir "$work/dev"
mount -t tmpfs -o mode=755 tmpfs "$work/dev"
cp -ax /dev/. "$work/dev"
for node in null zero full random urandom tty; do chown 0:0 "$work/dev/$node"; done
for place in pts shm mqueue; do [ ! -d "$work/dev/$place" ] || mount --rbind "/dev/$place" "$work/dev/$place"; done
mount --move "$work/dev" /dev

# Ends what the tests leave behind, and removes the cgroups that they made. A frozen process does not end.
cgroups() { find /sys/fs/cgroup -mindepth 2 -type d 2> /dev/null | sort || true; } # those of others come and go
cgroups > "$work/cgroups"
leave() {
  local group ours
  ours=$(cgroups | comm -13 "$work/cgroups" -)
  for group in $ours; do
    # Those of other programs have no process that is seen here.
    grep -qx '[1-9][0-9]*' "$group/cgroup.procs" 2> /dev/null || continue
    echo THAWED 2> /dev/null > "$group/freezer.state" || true
    echo 0 2> /dev/null > "$group/cgroup.freeze" || true
    grep -x '[1-9][0-9]*' "$group/cgroup.procs" | grep -vx -e 1 -e $$ | xargs -r kill -KILL 2> /dev/null || true
  done
  sleep 1
  # Only empty ones can be removed.
  for group in $(tac <<< "$ours"); do rmdir "$group" 2> /dev/null || true; done
}
trap leave EXIT

mkdir -p "$work/bin" "$work/etc" "$work/overlay" "$work/share/nvidia-container-toolkit"
cp "$target/$profile"/nvidia-container-{runtime,runtime-hook,cli} "$target/$profile"/{nvidia-cdi-hook,nvidia-ctk,nvc-query} "$work/bin"
# They recognise each other by it, as when they are installed.
scripts/build/ids.sh "$work/bin" > "$work/share/nvidia-container-toolkit/build-ids"
cp "$target/$profile"/nvc-sim{driver,runtime} "$work"
for runtime in runc crun; do ln -s nvc-simruntime "$work/sim-$runtime"; done
"$work/nvc-simdriver" build "$work/driver" > "$work/log"
# The kernel lets a user namespace mount proc if there is one with nothing mounted on it.
mkdir "$work/proc"
mount -t proc proc "$work/proc"
mount --bind "$work/driver/proc/devices" /proc/devices
mount --bind "$work/driver/proc/driver" /proc/driver
mount -t overlay -o "lowerdir=/etc,upperdir=$work/etc,workdir=$work/overlay" overlay /etc
mkdir -p /etc/nvidia-container-runtime

configure() { # MODE RUNTIME
  cat > /etc/nvidia-container-runtime/config.toml <<END_OF_FILE
[nvidia-container-cli]
root = "$work/driver"
load-kmods = false
path = "$work/bin/nvidia-container-cli"
[nvidia-container-runtime]
mode = "$1"
runtimes = ["$2"]
[nvidia-container-runtime-hook]
path = "$work/bin/nvidia-container-runtime-hook"
[nvidia-ctk]
path = "$work/bin/nvidia-cdi-hook"
END_OF_FILE
}

# Prints TAP: `ok N NAME`, `not ok N NAME`. Names of crun's tests begin with their file's.
run_runc() { # RUNTIME
  cd "$kept/src/runc/tests/integration"
  # Checkpoints need criu, agents a Go program that Debian does not ship.
  for file in *.bats; do
    case $file in checkpoint.bats | seccomp-notify*.bats) continue ;; esac
    wanted "$file" || continue
    # Its tests expect a terminal.
    { RUNC=$1 timeout 600 script -qec "bats --tap $file" /dev/null < /dev/null 2>&1 || true; } | tr -d '\r' |
      tee -a "$log" | sed -n "s/^\(\(not \)\{0,1\}ok\) [0-9]* /\1 0 ${file%.bats}: /p"
  done
}

run_crun() { # RUNTIME
  cd "$kept/src/crun/tests"
  for file in test_*.py; do
    case $file in test_checkpoint_restore.py) continue ;; esac
    wanted "$file" || continue
    # A test that fails is a line of the results. crun gives a container's streams to the container's user: the errors are a
    # pipe, and the input is not the machine's /dev/null, which the caller of this script may have given it.
    { OCI_RUNTIME=$1 INIT=$kept/init timeout 600 python3 "$file" 2> >(cat >> "$log") < /dev/null || true; } |
      sed -n "s/^\(\(not \)\{0,1\}ok\) [0-9]* - /\1 0 $(basename "$file" .py): /p"
  done
}

wanted() { # FILE
  [ ${#files[@]} -gt 0 ] || return 0
  local part
  for part in "${files[@]}"; do [[ $1 != *"$part"* ]] || return 0; done
  return 1
}

# Runs a suite with a runtime in one way; the TAP comes to FILE.
run_way() { # SUITE WAY FILE
  local real program request=
  real=$(command -v "$1")
  case $2 in
    plain) program=$real ;;
    ours) program=$work/bin/nvidia-container-runtime; configure auto "$real" ;;
    plain-simulated) program=$work/sim-$1 ;;
    *) program=$work/bin/nvidia-container-runtime; configure "$2" "$work/sim-$1"; request="python3 $here/suites/request.py \"\$@\"" ;;
  esac
  printf '#!/bin/sh\n%s\nexec %s "$@"\n' "$request" "$program" > "$work/$1-$2"
  chmod 755 "$work/$1-$2"
  (run_"$1" "$work/$1-$2") > "$3"
}

status=0
for suite in $suites; do
  # Debian 12's crun does not support machines with both cgroup versions.
  [ "$suite" != crun ] || umount -l /sys/fs/cgroup/unified 2> /dev/null || true
  # With a request, the simulated driver must be in the container's procfs: also for the plain runtime.
  for way in plain ours plain-simulated auto legacy; do
    start=$SECONDS
    run_way "$suite" $way "$work/$suite.$way"
    echo "$suite, $way: $(grep -c '^ok' "$work/$suite.$way" || true) passed or skipped," \
      "$(grep -c '^not' "$work/$suite.$way" || true) failed, $((SECONDS - start)) s"
  done
  for pair in plain:ours plain-simulated:auto plain-simulated:legacy; do
    plain=${pair%:*} way=${pair#*:}
    results=("$work/$suite.$plain" "$work/$suite.$way")
    # The tests wait for fixed times, which a busy machine exceeds: what differs runs once more.
    mapfile -t files < <(python3 "$here/suites/compare.py" --files "$suite" "$way" "${results[@]}" "$here/suites/expected")
    if [ ${#files[@]} -gt 0 ]; then
      echo "$suite, $way: again: ${files[*]}"
      run_way "$suite" "$way" "$work/again"
      results+=("$work/again")
    fi
    python3 "$here/suites/compare.py" "$suite" "$way" "${results[@]}" "$here/suites/expected" || status=1
  done
  files=("${chosen[@]}")
done
exit $status
