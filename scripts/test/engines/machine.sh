# To be sourced by scripts/test/engines.sh and scripts/test/units.sh in the repository's root: makes a Debian root with
# engines, our programs and a simulated driver, and runs a command in it, in namespaces of its own. With NVC_PACKAGES=1,
# our programs are those of the packages in target/packages, which the command must install from /srv/packages.
# shellcheck shell=bash disable=SC2154 # here: scripts/test

PATH=$PATH:/usr/sbin:/sbin:${CARGO_HOME:-~/.cargo}/bin
die() { echo "${0##*/}: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "needs root"
for tool in debootstrap cargo unshare pivot_root; do command -v $tool > /dev/null || die "$tool is missing"; done
cache=${NVC_ENGINES_CACHE:-/var/cache/nvc-engines}
profile=${NVC_PROFILE:-release}

engines=docker.io,containerd,podman,crun,runc,buildah
tools=ca-certificates,iproute2,procps,python3-minimal,systemd-sysv,dbus,udev,uidmap
# Engines of users, and systemd's own.
tools=$tools,rootlesskit,dbus-user-session,libpam-systemd,systemd-container

base() { # SUITE: a minimal system with the engines
  local packages=$engines,$tools
  case $1 in
    # debootstrap does not resolve the virtual package that podman depends on.
    bookworm) packages=$packages,netavark ;;
    *) packages=$packages,docker-cli ;;
  esac
  # A root of other packages is made again.
  [ "$(cat "$cache/$1.complete" 2> /dev/null)" != "$packages" ] || return 0
  rm -rf --one-file-system "${cache:?}/$1" "$cache/$1.complete"
  mkdir -p "$cache"
  echo "${0##*/}: making $cache/$1" >&2
  # Debian 12's debootstrap does not know the names of later suites; all are made as sid is.
  unshare --mount debootstrap --variant=minbase "--include=$packages" "$1" "$cache/$1" "${NVC_DEBIAN_URI:-http://deb.debian.org/debian}" \
    /usr/share/debootstrap/scripts/sid > "$cache/$1.log" || die "debootstrap failed: $cache/$1.log"
  rm -rf "${cache:?}/$1"/var/cache/apt/archives/*.deb
  echo "$packages" > "$cache/$1.complete"
}

# Changes a copy of a root: the changes are in LAYER/changes.
# shellcheck disable=SC2016 # expanded by that shell
change='
set -e
lower=$1 layer=$2 packages=$3
mkdir -p "$layer/changes" "$layer/overlay" "$layer/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$layer/changes,workdir=$layer/overlay" overlay "$layer/root"
cd "$layer/root"
mount -t proc proc proc
mount --bind /dev dev
cp /etc/resolv.conf etc/
# As debootstrap, which checks the signature and not the date: a mirror may be older than the machine says.
chroot . apt-get -qq -o Acquire::Check-Valid-Until=false update
# shellcheck disable=SC2086 # several words
DEBIAN_FRONTEND=noninteractive chroot . apt-get -qq install -y --no-install-recommends $packages
'
changed() { # SUITE LAYER LOG PACKAGES [COMMAND [ARGUMENT...]]: installs the packages in a copy of the suite, then runs the command in its root
  local suite=$1 layer=$2 log=$3 packages=$4 command=${5:-}
  shift $(($# < 5 ? 4 : 5))
  unshare --mount --propagation private bash -c "$change$command" bash "$cache/$suite" "$layer" "$packages" "$@" > "$log" 2>&1 ||
    die "failed: $log"
}

# The reference library of CDI, newer than this machine's: its program is compiled in a changed copy of the root, once.
# shellcheck disable=SC2016 # expanded by that shell
compile='
mkdir -p srv/go/src/check
sed "s,github.com/container-orchestrated-devices,tags.cncf.io," "$4" > srv/go/src/check/main.go
chroot . env GO111MODULE=off CGO_ENABLED=0 GOPATH=/srv/go:/usr/share/gocode GOCACHE=/tmp/go TMPDIR=/tmp HOME=/root go build -o /srv/cdi-check check
'
reference() { # SUITE: makes $cache/SUITE.cdi-check
  base "$1"
  local checker=$cache/$1.cdi-check layer=$work/reference
  [ ! "$checker" -nt tests/go/cdi-check.go ] || return 0
  echo "${0##*/}: making $checker" >&2
  changed "$1" "$layer" "$checker.log" "golang-go golang-tags.cncf-container-device-interface-dev" "$compile" "$PWD/tests/go/cdi-check.go"
  install -m 755 "$layer/changes/srv/cdi-check" "$checker"
  rm -rf --one-file-system "$layer"
}

# More packages, for one script: a layer above the suite's root, kept beside it.
declare -A layers=() # by name: the layers of a root, the topmost first
layer() { # NAME SUITE PACKAGES: makes $cache/NAME, which play and boot take as a suite
  local name=$1 suite=$2 made
  base "$suite"
  made="$suite $(cat "$cache/$suite.complete") $3"
  layers[$name]=$cache/$name:$cache/$suite
  [ "$(cat "$cache/$name.complete" 2> /dev/null)" != "$made" ] || return 0
  rm -rf --one-file-system "${cache:?}/$name" "$cache/$name.complete"
  echo "${0##*/}: making $cache/$name" >&2
  changed "$suite" "$cache/$name.new" "$cache/$name.log" "$3"
  rm -rf --one-file-system "$cache/$name.new/changes/var/cache/apt" "$cache/$name.new/changes/var/lib/apt/lists"
  mv "$cache/$name.new/changes" "$cache/$name"
  rm -rf --one-file-system "$cache/$name.new"
  echo "$made" > "$cache/$name.complete"
}

[ -z "${NVC_PACKAGES:-}" ] || profile=debug
if [ -z "${NVC_NO_BUILD:-}" ]; then
  options=()
  [ "$profile" != release ] || options=(--release)
  # shellcheck disable=SC2086 # several words
  [ "${NVC_PACKAGES:-}" ] || cargo build -q "${options[@]}" ${more_crates:-} -p nvc-cli -p nvc-hook -p nvc-runtime -p nvc-ctk -p nvc-cdi-hook -p nvc-docker \
    -p libnvidia-container
  cargo build -q "${options[@]}" -p nvc-testkit -p nvc-tests --bins
fi
bin=$(readlink -f "${CARGO_TARGET_DIR:-target}/$profile")

work=$(mktemp -d "${TMPDIR:-/tmp}/nvc-engines.XXXXXX")
cgroup=/sys/fs/cgroup
[ -e $cgroup/cgroup.procs ] || cgroup=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$cgroup" ] || die "this machine has no cgroups of version 2"
cgroup=$cgroup/${work##*/}
cleanup() {
  rm -rf --one-file-system "$work"
  # The machine's processes may still be ending.
  for _ in 1 2 3 4 5; do
    find "$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null || true
    [ -d "$cgroup" ] || break
    sleep 1
  done
}
trap cleanup EXIT
# Engines keep their storage in $work, which must be on a filesystem that supports overlayfs.
mkdir "$work/programs" "$cgroup"
programs="nvidia-container-cli nvidia-container-runtime nvidia-container-runtime-hook nvidia-cdi-hook nvidia-ctk
  nvidia-docker nvidia-docker-plugin nvc-query ${more_programs:-}"
mkdir "$work/packages"
if [ "${NVC_PACKAGES:-}" ]; then
  cp "${CARGO_TARGET_DIR:-target}"/packages/*.deb "$work/packages/"
  programs=
fi
for program in $programs; do
  install -m 755 "$bin/$program" "$work/programs/"
done
# As the packages do: our programs recognise each other by it.
mkdir "$work/share"
[ -z "$programs" ] || scripts/build/ids.sh "$work/programs" > "$work/share/build-ids"
for program in nvc-simruntime nvc-cri nvc-hook-matrix; do
  install -m 755 "$bin/$program" "$work/programs/"
done
cc -shared -fPIC -o "$work/evil.so" tests/c/evil.c
echo 'int fresh(void) { return 1; }' | cc -shared -fPIC -Wl,-soname,libfresh.so.1 -o "$work/libfresh.so" -x c -
cc -shared -fPIC -o "$work/memlock.so" scripts/test/engines/memlock.c
# The checks name directories of Debian.
"$bin/nvc-simdriver" profile debian > "$work/profile"
"$bin/nvc-simdriver" build "$work/driver" --profile "$work/profile" > /dev/null
"$bin/nvc-simdriver" rootfs "$work/image" debian
cp -a "$here/engines" pkg "$work/"

# Runs in the new namespaces: makes the machine and enters it.
# shellcheck disable=SC2016 # expanded by that shell
enter='
set -e
lower=$1 work=$2
mount --make-rprivate /
mkdir -p "$work/layer/etc" "$work/layer/usr" "$work/layer/srv" "$work/changes" "$work/overlay" "$work/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$work/changes,workdir=$work/overlay" overlay "$work/root"
cd "$work/root"
cp -a "$work/driver/usr/." usr/
cp -a "$work/driver/etc/nvidia-sim" etc/
cp -a "$work/programs/." usr/bin/
mkdir -p usr/share/nvidia-container-toolkit
cp -a "$work/share/." usr/share/nvidia-container-toolkit/
cp -a "$work/image" "$work/engines" "$work/pkg" "$work/packages" "$work"/*.so srv/
# The suite without what is added below.
mkdir -p srv/base
mount --bind "${lower##*:}" srv/base
mkdir -p usr/lib/nvc-sim srv/sim
cp -a "$work/driver/proc" srv/sim/
# A kernel with the modules shows /proc/driver/nvidia in every procfs; here these runtimes do.
for runtime in usr/sbin/runc usr/bin/crun; do
  [ -e "usr/lib/nvc-sim/${runtime##*/}" ] || mv "$runtime" usr/lib/nvc-sim/
  cp usr/bin/nvc-simruntime "$runtime"
done
mount -t proc proc proc
# As root, crun 1.8 wants an unlimited RLIMIT_MEMLOCK for programs, against which this kernel does not count them.
case $(chroot . /usr/lib/nvc-sim/crun --version) in "crun version 1.8"*)
  if ! (ulimit -l unlimited) 2> /dev/null; then
    [ -e usr/lib/nvc-sim/crun.real ] || mv usr/lib/nvc-sim/crun usr/lib/nvc-sim/crun.real
    printf "#!/bin/sh\nLD_PRELOAD=/srv/memlock.so exec /usr/lib/nvc-sim/crun.real \"\$@\"\n" > usr/lib/nvc-sim/crun
    chmod 755 usr/lib/nvc-sim/crun
  fi
  ;;
esac
mount -t tmpfs -o mode=555 tmpfs proc/driver
mkdir proc/driver/nvidia
mount --bind srv/sim/proc/driver proc/driver
mount --bind srv/sim/proc/devices proc/devices
# A user namespace may mount a procfs only if an existing one is visible whole.
mkdir -p srv/proc
mount -t proc proc srv/proc
mount -t sysfs sysfs sys
if [ "${NVC_HOST_CGROUPS:-}" ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; else mount -t cgroup2 cgroup2 sys/fs/cgroup; fi
for directory in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs $directory; done
# Not on an overlay: engines make overlays of their own here.
for directory in docker containerd containers; do
  mkdir -p "$work/var/$directory" "var/lib/$directory"
  mount --bind "$work/var/$directory" "var/lib/$directory"
done
mkdir -m 755 dev/pts dev/shm dev/mqueue
chmod 1777 tmp
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
  IFS=: read -r name major minor <<< "$node"
  mknod -m 666 "dev/$name" c "$major" "$minor"
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
find "$work/driver/dev" -type c ! -name null | while read -r node; do
  name=${node#"$work/driver/"}
  mkdir -p "${name%/*}"
  cp -a "$node" "$name"
done
ip link set lo up
mkdir -p old
pivot_root . old
umount -l old
ldconfig
shift 2
exec env -i HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
'

keep= # the next machine has the last one's disk, as after a reboot
play() { # SUITE COMMAND...: runs the command in a new machine of that suite
  local suite=$1
  shift
  local lower=$cache/$suite
  case $suite in
    bookworm | trixie | forky) base "$suite" ;;
    *) lower=${layers[$suite]?unknown suite $suite} ;;
  esac
  [ -n "$keep" ] || rm -rf --one-file-system "$work"/{layer,changes,overlay,root,var}
  # A cgroup of its own is the root of what the machine sees, unless NVC_HOST_CGROUPS is set.
  local own_cgroups=--cgroup
  [ -z "${NVC_HOST_CGROUPS:-}" ] || own_cgroups=
  # shellcheck disable=SC2016,SC2086 # expanded by that shell; one option or none
  bash -c 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"' bash "$cgroup" \
    unshare --mount --pid --net --ipc --uts $own_cgroups --fork --kill-child --propagation private \
    bash -c "$enter" bash "$lower" "$work" "$@"
}

# ---- a machine that systemd runs -------------------------------------------------------------------------------------

systemd= play_pid=
halt() { # ends the booted machine: it ends with its first process
  [ -z "$systemd" ] || kill -KILL "$systemd" 2> /dev/null || true
  [ -n "$systemd" ] || [ -z "$play_pid" ] || kill "$play_pid" 2> /dev/null || true
  [ -z "$play_pid" ] || wait "$play_pid" 2> /dev/null || true
  systemd= play_pid=
  # Cgroups of systemd's units, which the next machine must not find.
  find "$cgroup" -mindepth 1 -depth -type d -exec rmdir {} + 2> /dev/null || true
}
trap 'halt; cleanup' EXIT

boot() { # SUITE: boots a new machine of that suite; $systemd is its PID 1
  case $1 in bookworm | trixie | forky) base "$1" ;; esac # its time does not count below
  play "$1" container=nvc NVC_KEPT="$keep" bash /srv/engines/boot.sh > "$work/console" 2>&1 &
  play_pid=$!
  local child grandchild
  # systemd is the child of unshare.
  for _ in $(seq 600); do
    for child in $(cat "/proc/$play_pid/task/$play_pid/children" 2> /dev/null); do
      if [ "$(cat "/proc/$child/comm" 2> /dev/null)" = systemd ]; then systemd=$child; fi
      for grandchild in $(cat "/proc/$child/task/$child/children" 2> /dev/null); do
        if [ "$(cat "/proc/$grandchild/comm" 2> /dev/null)" = systemd ]; then systemd=$grandchild; fi
      done
    done
    [ -z "$systemd" ] || return 0
    kill -0 "$play_pid" 2> /dev/null || break
    sleep 0.1
  done
  tail -n 20 "$work/console"
  die "systemd did not start"
}

inside() { # [NAME=VALUE]... COMMAND...: runs the command in the booted machine
  nsenter -t "$systemd" -a env -i HOME=/root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Runs a script of engines/ on a booted machine of each suite.
on_booted() { # NAME SUITE...
  local name=$1 suite failed=()
  shift
  for suite; do
    echo "== Debian $suite, systemd as PID 1"
    boot "$suite"
    inside bash "/srv/engines/$name.sh" || failed+=("$suite")
    halt
  done
  [ ${#failed[@]} -eq 0 ] || die "failed: ${failed[*]}"
  echo "$name: all right"
}
