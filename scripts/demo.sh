#!/bin/sh
# Demonstrates nvidia-container-cli with a container made by hand: new namespaces, a small root, `configure`,
# pivot_root, chroot, `nvidia-smi -L`; for GPU 0, for GPU 1 and for one MIG device. Then, with the simulated driver and
# as root, the same under runc by nvidia-container-runtime and by a CDI specification, and under docker by nvidia-docker,
# where these are installed. Ends with PASS or FAIL.
#
#   scripts/demo.sh [--simulated] [--unprivileged]
#
# Uses the real driver if there is one, otherwise (or with --simulated) a simulated one. As root it makes real
# containers; as another user (or with --unprivileged) it does what a user namespace permits and names the steps it
# skips.
# Environment: NVC_CLI        the nvidia-container-cli to use (default: built here)
#              NVC_SIMDRIVER  likewise nvc-simdriver; with both, nothing is installed or built
set -eu

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
repository=$(dirname "$here")
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:${CARGO_HOME:-${HOME:-}/.cargo}/bin
[ -z "${SUDO_USER:-}" ] || PATH=$PATH:$(getent passwd "$SUDO_USER" | cut -d: -f6)/.cargo/bin
export PATH

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }
# Prints a command and runs it.
show() { printf '  # %s\n' "$*"; "$@"; }

# ---- inside: the first process of the new namespaces -----------------------------------------------------------------

# The mounts of a machine with the simulated driver's modules loaded, visible in these namespaces only.
show_simulated_proc() {
  mount -t tmpfs -o mode=555 tmpfs proc/driver
  mkdir -m 555 proc/driver/nvidia
  mount --bind "$driver/proc/devices" /proc/devices
  mount --bind "$driver/proc/driver" /proc/driver
}

inside() {
  device=$1
  umask 022
  say "  # cd rootfs, mount it and proc, sys, tmp, run"
  mount --bind "$work/rootfs" "$work/rootfs"
  cd "$work/rootfs"
  mount -t proc proc proc
  if [ "$privileged" ]; then mount -t sysfs sysfs sys; else mount --rbind /sys sys; fi
  mount -t tmpfs tmpfs tmp
  mount -t tmpfs tmpfs run
  mkdir -p run/lock
  [ ! "$driver" ] || show_simulated_proc

  # A simulated driver has no modules.
  if [ "$driver" ]; then set -- "--root=$driver"; else set -- --load-kmods; fi
  [ "$privileged" ] || set -- "$@" --user
  set -- "$@" configure "--ldconfig=@$ldconfig" --no-cgroups --utility --device "$device"
  [ "$privileged" ] || set -- "$@" --no-devbind
  printf '  # nvidia-container-cli %s $(pwd)\n' "$*"
  "$cli" "$@" "$(pwd)"

  show pivot_root . mnt
  # From here on, programs come from the new root.
  hash -r
  show umount -l mnt
  set -- chroot
  [ ! "$privileged" ] || set -- "$@" --userspec=1000:1000
  set -- "$@" . env -i PATH=/usr/bin:/bin
  [ "$privileged" ] || [ ! "$driver" ] || set -- "$@" NVIDIA_SIM_NO_NODES=1
  printf '  # %s nvidia-smi -L\n' "$*"
  exec "$@" nvidia-smi -L
}

if [ "${1:-}" = --inside ]; then
  inside "$2"
fi

# ---- outside -----------------------------------------------------------------------------------------------------------

simulated='' privileged=yes
[ "$(id -u)" = 0 ] || privileged=
for option; do
  case $option in
    --simulated) simulated=yes ;;
    --unprivileged) privileged= ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done

# There is a driver if its modules are loaded and its management library can be found.
has_driver() {
  [ -e /dev/nvidiactl ] && [ -r /proc/driver/nvidia/version ] &&
    ldconfig -p 2>/dev/null | grep -q 'libnvidia-ml\.so\.1 '
}

build() {
  cli=${NVC_CLI:-} simdriver=${NVC_SIMDRIVER:-}
  [ ! "$cli" ] || [ ! "$simdriver" ] || return 0
  "$here/setup.sh"
  # Without runc the demo is shorter.
  [ ! "$privileged" ] || "$here/setup.sh" demo || true
  title "Building"
  (cd "$repository" && cargo build -p nvc-cdi-hook -p nvc-cli -p nvc-ctk -p nvc-docker -p nvc-hook -p nvc-runtime -p nvc-testkit \
    -p libnvidia-container)
  target=${CARGO_TARGET_DIR:-$repository/target}
  programs=$target/debug
  cli=${cli:-$target/debug/nvidia-container-cli}
  simdriver=${simdriver:-$target/debug/nvc-simdriver}
}

prepare() {
  # A driver may not be below a directory of all users.
  work=/var/lib
  [ -w $work ] || work=/tmp
  work=$(mktemp -d "${TMPDIR:-$work}/nvc-demo.XXXXXX")
  # All mounts are in namespaces that have ended by then; if one has not, nothing in it is removed.
  trap 'rm -rf --one-file-system "$work"' EXIT
  trap 'exit 1' HUP INT TERM
  chmod 755 "$work"
  # The driver's unprivileged process may have no access to a home directory.
  install -m 755 "$cli" "$work/nvidia-container-cli"
  cli=$work/nvidia-container-cli
  ldconfig=/sbin/ldconfig.real
  [ -e $ldconfig ] || ldconfig=/sbin/ldconfig
  if [ ! "$simulated" ] && has_driver; then
    driver=
    title "Driver: the real one, $(sed -n 's/^NVRM version: *//p' /proc/driver/nvidia/version)"
  else
    driver=$work/driver
    title "Driver: simulated (there is none on this machine, or it is not wanted)"
    nodes=
    [ "$privileged" ] || nodes=--no-nodes
    "$simdriver" build "$driver" $nodes >/dev/null
    say "  $(find "$driver" -type f | wc -l) files in $driver"
  fi
  if [ ! "$privileged" ]; then
    say "  Unprivileged, in a user namespace. Left out, since a user namespace cannot have it:"
    say "  - device nodes: not made, not mounted (--no-devbind); nvidia-smi looks at /proc/driver/nvidia alone"
    say "  - user 1000 in the container: only this user is mapped"
    [ "$driver" ] || say "  - loading kernel modules: --load-kmods does nothing"
    [ ! "$driver" ] || unshare -Urmpf true || {
      say "FAIL: user namespaces are not allowed here. On Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0,"
      say "      or run this as root."
      exit 1
    }
  fi
}

# `info` of the chosen driver as lines INDEX,MINOR,MODEL,BRAND,UUID,…
gpus() {
  set -- info --csv
  [ ! "$driver" ] || set -- "--root=$driver" "$@"
  if [ "$privileged" ] || [ ! "$driver" ]; then
    "$cli" "$@"
  else
    unshare -Ur "$cli" --user "$@"
  fi | sed '1,/^$/d' | sed 1d
}

# MIG devices as lines SELECTOR GPU-UUID MIG-UUID.
mig_devices() {
  if [ "$driver" ]; then
    sed -n 's/^mig gpu=\([0-9]*\) slot=\([0-9]*\) .* uuid=\([^ ]*\) .*/\1 \2 \3/p' "$driver/etc/nvidia-sim/profile" |
      while read -r gpu slot uuid; do say "$gpu:$slot $(uuid_of "$gpu") $uuid"; done
  else
    nvidia-smi -L 2>/dev/null | awk -F'UUID: ' '
      { sub(/\)$/, "", $2) }
      /^GPU / { gpu = $2 }
      / MIG / { print $2, gpu, $2 }'
  fi
}

failures=0
verdict() {
  if [ "$1" = 0 ]; then say "  PASS: $2"; else say "  FAIL: $2"; failures=$((failures + 1)); fi
}

# container DEVICE EXPECTED WHAT: runs a container that must show exactly the expected UUIDs
container() {
  device=$1 expected=$2
  title "A container with $3"
  rm -rf --one-file-system "$work/rootfs"
  "$simdriver" rootfs "$work/rootfs"
  set -- --mount --pid --fork --kill-child --propagation private
  [ "$privileged" ] || set -- --user --map-root-user "$@"
  say "  # unshare $*"
  status=0
  work=$work driver=$driver cli=$cli ldconfig=$ldconfig privileged=$privileged \
    unshare "$@" -- "$here/demo.sh" --inside "$device" > "$work/log" 2>&1 || status=$?
  sed 's/^GPU \|^  MIG /    &/' "$work/log"
  verdict $status "the container was made and nvidia-smi ran in it (status $status)"
  found=$(sed -n 's/^\(GPU \|  MIG \).*(UUID: \([^)]*\)).*/\2/p' "$work/log" | tr '\n' ' ')
  [ "${found% }" = "$expected" ] && same=0 || same=1
  verdict $same "nvidia-smi shows exactly $expected"
}

build
mounts_before=$(cat /proc/self/mountinfo)
prepare

title "The driver's GPUs (nvidia-container-cli info --csv)"
gpus > "$work/gpus"
sed 's/^/  /' "$work/gpus"
uuid_of() { awk -F, -v i="$1" '$1 == i { print $5 }' "$work/gpus"; }
mig_devices > "$work/mig"
sed 's/^\([^ ]*\) .* /  MIG device \1, /' "$work/mig"
if [ ! -s "$work/gpus" ]; then
  say "FAIL: no GPU"
  exit 1
fi

container 0 "$(uuid_of 0)" "GPU 0 alone"
if [ "$(uuid_of 1)" ]; then
  container 1 "$(uuid_of 1)" "GPU 1 alone"
else
  title "Left out: a container with GPU 1. This machine has one GPU."
fi
if [ -s "$work/mig" ]; then
  read -r device gpu mig < "$work/mig"
  container "$device" "$gpu $mig" "one MIG device"
else
  title "Left out: a container with a MIG device. This machine has none."
fi

# runtime MODE DEVICE EXPECTED WHAT: the same with runc and our runtime
runtime() {
  title "The same by nvidia-container-runtime and runc: $4"
  status=0
  work=$work driver=$driver cli=$cli programs=$programs unshare --mount --pid --fork --kill-child --propagation private \
    --mount-proc -- "$here/demo/runtime.sh" "$1" "$2" > "$work/log" 2>&1 || status=$?
  sed 's/^GPU \|^  MIG /    &/' "$work/log"
  verdict $status "runc started the container (status $status)"
  found=$(sed -n 's/^\(GPU \|  MIG \).*(UUID: \([^)]*\)).*/\2/p' "$work/log" | tr '\n' ' ')
  [ "${found% }" = "$3" ] && same=0 || same=1
  verdict $same "nvidia-smi shows exactly $3"
}
if [ "$privileged" ] && [ "$driver" ] && [ -x "${programs:-}/nvidia-container-runtime" ] && command -v runc >/dev/null; then
  runtime auto 0 "$(uuid_of 0)" "GPU 0 alone, in the default mode"
  [ ! -s "$work/mig" ] || runtime auto "$device" "$gpu $mig" "one MIG device, in the default mode"
  runtime legacy 0 "$(uuid_of 0)" "GPU 0 alone, in mode legacy"
  runtime cdi nvidia.com/gpu=0 "$(uuid_of 0)" "GPU 0 alone, by a CDI specification"
  [ ! -s "$work/mig" ] || runtime cdi "nvidia.com/gpu=$device" "$gpu $mig" "one MIG device, by a CDI specification"
else
  title "Left out: nvidia-container-runtime and CDI. They are shown with the simulated driver, as root, where runc is."
fi

# docker with the simulated driver, in separate namespaces; with the real driver the machine's docker is not touched.
with_docker() {
  if [ ! "$privileged" ] || [ ! "$driver" ] || [ ! -x "${programs:-}/nvidia-docker" ] ||
    ! command -v dockerd >/dev/null || ! command -v curl >/dev/null; then
    title "Left out: nvidia-docker. It is shown with the simulated driver, as root, where dockerd and curl are."
    return
  fi
  title "nvidia-docker, its plugin and a docker daemon"
  "$simdriver" rootfs "$work/image"
  mkdir "$work/docker"
  # shellcheck disable=SC2016 # for the shell in there
  status=0
  unshare --mount --pid --net --fork --kill-child --propagation private bash \
    "$repository/tests/tests/nvidia_docker/world.sh" "$driver" "$work/image" "$work/docker" "$programs" '
      show() { printf "  # %s\n" "$*"; "$@" 2>&1 | sed "s/^/  /"; }
      start_docker; import_images; start_plugin
      show nvidia-docker run --rm cuda nvidia-smi -L
      show env NV_GPU=1 nvidia-docker run --rm cuda nvidia-smi -L
      show env NV_GPU=1 NV_DRY_RUN=1 nvidia-docker run --rm cuda nvidia-smi -L
      show curl -s http://localhost:3476/gpu/status/json
      has "GPU 1" "GPU-9e0b7d54" "$(NV_GPU=1 nvidia-docker run --rm cuda nvidia-smi -L)"
    ' > "$work/log" 2>&1 || status=$?
  cat "$work/log"
  verdict $status "containers of docker got their GPUs by the driver's volume (status $status)"
}
with_docker

title "Afterwards"
# Other programs may mount something meanwhile.
printf '%s\n' "$mounts_before" | sort > "$work/mounts"
sort /proc/self/mountinfo | comm -13 "$work/mounts" - | grep -F -e "$work" -e ' /proc/' -e nvidia > "$work/log" && same=1 || same=0
cat "$work/log"
verdict $same "the machine's mounts are as before"
used=real
[ ! "$driver" ] || used=simulated
[ "$privileged" ] || used="$used, without privileges"
if [ $failures -gt 0 ]; then
  say "FAIL: $failures of the checks above (driver: $used)"
  exit 1
fi
say "PASS: all of the demo worked (driver: $used)"
