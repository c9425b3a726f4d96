#!/bin/bash
# Tests CDI specifications with real engines: podman starts containers with them under runc and crun, the Go reference
# library reads them, `cdi verify` detects changes, and engines accept the configuration that nvidia-ctk writes.
#
#   scripts/test/cdi.sh
#
# Uses a simulated driver, in a separate mount namespace. Needs root, podman, runc, crun, containerd, golang-go and
# golang-github-container-orchestrated-devices-container-device-interface-dev. NVC_PROFILE=debug uses unoptimised
# programs.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
profile=${NVC_PROFILE:-release}

if [ "${1:-}" != --inside ]; then
  options=()
  [ "$profile" != release ] || options=(--release)
  cargo build "${options[@]}" -p nvc-ctk -p nvc-cdi-hook
  cargo build "${options[@]}" -p libnvidia-container --bin nvc-query
  cargo build "${options[@]}" -p nvc-testkit --bin nvc-simdriver
  work=$(mktemp -d -p /var/lib) # no driver may be below a directory of all users
  status=0
  unshare --mount --propagation private "$0" --inside "$work" "$(readlink -f "${CARGO_TARGET_DIR:-target}/$profile")" || status=$?
  rm -rf "$work"
  exit $status
fi

work=$2 bin=$3
repository=$PWD
ctk=$bin/nvidia-ctk
wrong=0
check() { # NAME COMMAND...: the command succeeds
  local name=$1
  shift
  if "$@" > "$work/log" 2>&1; then echo "ok     $name"; else echo "WRONG  $name"; sed 's/^/       /' "$work/log"; wrong=$((wrong + 1)); fi
}
refuses() { ! "$@"; }
says() { # TEXT COMMAND...: its output has the text
  local text=$1
  shift
  "$@" > "$work/said" 2>&1 || true
  grep -qF -- "$text" "$work/said" || { cat "$work/said"; return 1; }
}
lacks() {
  local text=$1
  shift
  "$@" > "$work/said" 2>&1 || { cat "$work/said"; return 1; }
  ! grep -F -- "$text" "$work/said"
}

# ---- the machine -------------------------------------------------------------------------------------------------------

driver=$work/driver root=$work/root
"$bin/nvc-simdriver" build "$driver" > "$work/log"
"$bin/nvc-simdriver" rootfs "$root" debian
mount -t tmpfs -o mode=555 tmpfs /proc/driver
mkdir /proc/driver/nvidia
mount --bind "$driver/proc/driver" /proc/driver
mount --bind "$driver/proc/devices" /proc/devices
mkdir "$work/etc" "$work/etc-work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$work/etc,workdir=$work/etc-work" /etc
mkdir -p /etc/cdi
rm -f /etc/cdi/*
generate() { "$ctk" --quiet cdi generate "--driver-root=$driver" "--nvidia-cdi-hook-path=$bin/nvidia-cdi-hook" "$@"; }

# ---- the Go reference library ------------------------------------------------------------------------------------------

mkdir -p "$work/go/src/check"
cp tests/go/cdi-check.go "$work/go/src/check/main.go"
check "the Go program builds" env GO111MODULE=off "GOPATH=$work/go:/usr/share/gocode" "GOCACHE=$work/gocache" \
  go build -o "$work/cdi-check" check
n=0
for options in "" --hooks=merged --style=live "--style=live --disable-hook=create-symlinks" --device-name-strategy=type-index --no-all-device --disable-hook=all --device-id=1:0 \
  --device-id=none --mode=management "--format=json --device-id=0"; do
  n=$((n + 1))
  ending=yaml
  case $options in *json*) ending=json ;; esac
  mkdir "$work/spec$n"
  # shellcheck disable=SC2086 # words
  check "generate $options" generate $options "--output=$work/spec$n/s.$ending"
  check "the reference library takes it" "$work/cdi-check" "$work/spec$n/s.$ending"
done

# A Jetson with an integrated and a discrete GPU.
printf 'dev, /dev/nvidia[01]\ndev, /dev/nvidiactl\nlib, /usr/lib/*-linux-gnu/libcuda.so.*\n' > "$work/l4t.csv"
for machine in orin-pair thor-pair; do
  "$bin/nvc-simdriver" profile "$machine" > "$work/profile"
  "$bin/nvc-simdriver" build "$work/$machine" --profile "$work/profile" > "$work/log"
  for options in "" --hooks=merged --feature-flag=disable-multiple-csv-devices "--device-id=1 --device-name-strategy=uuid"; do
    n=$((n + 1))
    mkdir "$work/spec$n"
    # shellcheck disable=SC2086 # words
    check "generate $machine $options" generate --mode=csv "--csv.file=$work/l4t.csv" "--driver-root=$work/$machine" \
      $options "--output=$work/spec$n/s.yaml"
    check "the reference library takes it" "$work/cdi-check" "$work/spec$n/s.yaml"
  done
done

# ---- golden files ------------------------------------------------------------------------------------------------------

# The unit tests compare them with what is rendered. cdi-check validates like the reference library's own program
# `validate`, which Debian does not package: with its package `schema`.
for file in toolkit/nvc-generate/src/golden/*; do
  check "the reference library takes ${file##*/}" "$work/cdi-check" "$file"
done

# ---- podman ------------------------------------------------------------------------------------------------------------

# The container's procfs has no driver: a hook of an earlier stage mounts the simulated one there.
mkdir "$work/hooks.d"
cat > "$work/simulate" <<END
#!/bin/bash
state=\$(cat)
value() { python3 -c 'import json,sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "\$state" "\$1"; }
root=\$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]+"/config.json"))["root"]["path"])' "\$(value bundle)")
nsenter -t "\$(value pid)" -m mount --bind "$driver/proc/driver" "\$root/proc/driver"
END
chmod 755 "$work/simulate"
printf '{"version":"1.0.0","hook":{"path":"%s"},"when":{"always":true},"stages":["createRuntime"]}' "$work/simulate" > "$work/hooks.d/s.json"
# crun refuses a mix of cgroup versions.
umount /sys/fs/cgroup/unified 2> /dev/null || true
inside() { # RUNTIME DEVICE COMMAND
  podman --root "$work/storage" --runroot "$work/run" --cgroup-manager=cgroupfs --hooks-dir="$work/hooks.d" "--runtime=$1" \
    run --rm --ulimit nofile=20000:20000 --ulimit nproc=4096:4096 --network=none --log-driver=none --events-backend=none \
    --device "nvidia.com/gpu=$2" --rootfs "$root" sh -c "$3"
}
for hooks in live separate merged; do
  option=--hooks=$hooks
  [ $hooks != live ] || option=--style=live
  generate "$option" --output=/etc/cdi/nvidia.yaml
  check "verify ($hooks)" "$ctk" cdi verify
  for runtime in runc crun; do
    check "GPU 0 ($hooks, $runtime)" says "GPU 0: NVIDIA L4" inside $runtime 0 "nvidia-smi -L"
    check "no other GPU ($hooks, $runtime)" lacks "af:00.0" inside $runtime 0 "ls /dev/nvidia* /proc/driver/nvidia/gpus"
    check "a MIG device ($hooks, $runtime)" says "MIG 3g.40gb" inside $runtime 1:0 "nvidia-smi -L"
    check "no other MIG device ($hooks, $runtime)" lacks cap156 inside $runtime 1:0 "ls /dev/nvidia-caps"
    check "libraries in the cache ($hooks, $runtime)" says libcuda.so.1 inside $runtime 0 "cat /etc/ld.so.cache"
  done
done

# ---- what changes ------------------------------------------------------------------------------------------------------

library=$(find "$driver" -xdev -type f -name 'libcuda.so.*.*' | head -1)
mv "$library" "$work/libcuda"
check "verify notices a library that is gone" says "no longer mount" "$ctk" cdi verify
check "its exit status says so" refuses "$ctk" cdi verify
one_line() { [ "$(grep -c '^  [^d r-]' <("$ctk" cdi verify "$@"))" = 1 ]; }
check "all differences are one line" one_line
check "details are printed on request" says "  - all devices: " "$ctk" cdi verify --details
mv "$work/libcuda" "$library"
# A specification of another driver, written by a version that recorded --quiet.
mkdir "$work/stale"
sed "s/$(basename "$library" | sed 's/libcuda.so.//')/550.1.1/; s/command: nvidia-ctk /&--quiet /" /etc/cdi/nvidia.yaml > "$work/stale/nvidia.yaml"
check "verify names both drivers" says "was made for driver 550.1.1; the machine has " "$ctk" cdi verify "--spec-dir=$work/stale"
repair=$({ "$ctk" cdi verify "--spec-dir=$work/stale" || true; } | sed -n 's/^  repair: nvidia-ctk //p')
check "its repair is a command" grep -q -- "--output=$work/stale/nvidia.yaml" <<< "$repair"
check "its repair is not quiet" refuses grep -q -e --quiet <<< "$repair"
eval "$ctk $repair" > "$work/said" 2>&1
check "the repair says which file it wrote" grep -q "Wrote $work/stale/nvidia.yaml" "$work/said"
check "the repair repairs" "$ctk" cdi verify "--spec-dir=$work/stale"
check "a file name gets an ending, and is said" says "Wrote $work/named.txt.yaml" "$ctk" cdi generate "--driver-root=$driver" \
  "--nvidia-cdi-hook-path=$bin/nvidia-cdi-hook" "--output=$work/named.txt"
mkdir "$work/nothing"
check "verify without a file says what to do" says "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml" "$ctk" cdi verify "--spec-dir=$work/nothing"
check "list, too" says "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml" "$ctk" cdi list "--spec-dir=$work/nothing"
check "verify is content again" "$ctk" cdi verify
# The files are searched for while NVML is busy, by the version in the first name.
: > "${library%/*}/libcuda.so.111.22"
check "an older driver's library is not the driver" generate --hooks=merged "--output=$work/two-drivers.yaml"
check "the file is that without it" diff <(grep -v '^#' /etc/cdi/nvidia.yaml) <(grep -v '^#' "$work/two-drivers.yaml")
rm "${library%/*}/libcuda.so.111.22" "$work/two-drivers.yaml"
chmod 600 "$driver/dev/nvidia0"
check "verify notices a node's mode" says "mode 600" "$ctk" cdi verify --details
chmod 666 "$driver/dev/nvidia0"

# A reboot after which nvidia-uvm has another major number: before the nodes are made again, and afterwards.
cp "$driver/proc/devices" "$work/devices"
old=$(sed -n 's/^ *\([0-9]*\) nvidia-uvm$/\1/p' "$work/devices") new=382
mknod_uvm() { # MAJOR
  rm -f "$driver/dev/nvidia-uvm" "$driver/dev/nvidia-uvm-tools"
  mknod -m 666 "$driver/dev/nvidia-uvm" c "$1" 0
  mknod -m 666 "$driver/dev/nvidia-uvm-tools" c "$1" 1
}
major() { sed "s/^ *[0-9]* nvidia-uvm\$/$1 nvidia-uvm/" "$work/devices" > "$driver/proc/devices"; }
# As upstream writes them.
mkdir "$work/upstream"
cat > "$work/upstream/nvidia.yaml" <<END
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - {path: /dev/nvidia-uvm, hostPath: $driver/dev/nvidia-uvm, major: $old, permissions: rwm}
    - {path: /dev/nvidiactl, hostPath: $driver/dev/nvidiactl, major: 195, minor: 255, permissions: rwm}
END
check "verify is content with a specification that records numbers" "$ctk" cdi verify "--spec-dir=$work/upstream"
major $new
check "verify notices a node of another boot" says "nvidia-uvm is $old:0, and the driver's major number is $new" "$ctk" cdi verify
check "its exit status says so" refuses "$ctk" cdi verify
mknod_uvm $new
check "with new nodes our specification is right: it names them by path" "$ctk" cdi verify
check "one that records numbers is not" says "nvidia-uvm is recorded as $old:0 and is $new:0" "$ctk" cdi verify "--spec-dir=$work/upstream"
check "its exit status says so" refuses "$ctk" cdi verify "--spec-dir=$work/upstream"
# A file of ours, edited by hand.
mkdir "$work/edited"
sed "s|^\( *\)hostPath: .*/dev/nvidia-uvm$|&\n\1major: $old|" /etc/cdi/nvidia.yaml > "$work/edited/nvidia.yaml"
check "in a file of ours, too" says "nvidia-uvm is recorded as $old:0 and is $new:0" "$ctk" cdi verify --details "--spec-dir=$work/edited"
major "$old"
mknod_uvm "$old"
check "verify is content as before" "$ctk" cdi verify

cp /etc/cdi/nvidia.yaml "$work/before"
check "a driver that does not answer leaves the file" refuses "$ctk" cdi generate --driver-root=/var/empty --output=/etc/cdi/nvidia.yaml
check "it is as it was" cmp "$work/before" /etc/cdi/nvidia.yaml
cp /etc/cdi/nvidia.yaml /etc/cdi/other.yaml
check "a sibling with the same devices is refused" refuses generate --output=/etc/cdi/nvidia.yaml
rm /etc/cdi/other.yaml
check "elsewhere it is not" generate "--output=$work/elsewhere/one.yaml"
check "under any name" generate "--output=$work/elsewhere/two.yaml"
check "files of the same content are the same" cmp "$work/elsewhere/one.yaml" "$work/elsewhere/two.yaml"
check "a relative driver root is made absolute" eval 'cd "$work" && "$ctk" --quiet cdi generate --driver-root=driver "--nvidia-cdi-hook-path=$bin/nvidia-cdi-hook" --output=relative.yaml && cmp relative.yaml elsewhere/one.yaml'
check "the repair names the file" says "--output=$work/edited/nvidia.yaml" "$ctk" cdi verify "--spec-dir=$work/edited"

readable() { (umask 077 && generate "--output=$work/umask/a/nvidia.yaml") && [ "$(stat -c %a "$work/umask" "$work/umask/a")" = "755
755" ]; }
check "users can read new directories whatever the umask" readable

# ---- a machine that sleeps ------------------------------------------------------------------------------------------------

# Each process's files, and what systemctl is asked. It starts what the refresh service would.
mkdir "$work/timer" "$work/timer/specs"
refreshed() { sed -n 's/^ExecStart=//p' "$repository/pkg/systemd/nvidia-cdi-refresh.service" | sed "s|/usr/bin/nvidia-ctk|$ctk|"; }
cat > "$work/timer/systemctl" <<END
#!/bin/sh
echo "\$*" >> $work/timer/refreshes
[ "\$*" != "-q is-enabled nvidia-cdi-refresh.service" ] || exit 0
[ "\$*" = "--no-block start nvidia-cdi-refresh.service" ] && exec $(refreshed) --driver-root=$driver --nvidia-cdi-hook-path=$bin/nvidia-cdi-hook
END
chmod 755 "$work/timer/systemctl"
strace=(strace --seccomp-bpf -f -qq -e "trace=open,openat,openat2,execve" -o "$work/timer/trace")
tick() { # what the timer starts each minute
  command=$(sed -n "s|/run/nvidia-cdi-refresh|$work/timer|g; s|^ExecStart=||p" "$repository/pkg/systemd/nvidia-cdi-verify.service")
  rm -f "$work/timer/trace" "$work/timer/refreshes"
  PATH=$work/timer:$PATH NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=$work/timer/specs/nvidia.yaml \
    eval "${strace[*]} ${command//\/usr\/bin\/nvidia-ctk/$ctk}"
}
ran() { grep -q 'execve.*/nvidia-ctk.*"verify".*= 0' "$work/timer/trace"; }
opens_nvml() { grep 'libnvidia-ml' "$work/timer/trace" | grep -v ENOENT; }
sleeps() { tick && ran && ! opens_nvml && ! ls "$work/timer/refreshes"; }
wakes() { tick && ran && opens_nvml; }
again() { generate "--output=$work/timer/specs/nvidia.yaml"; }
traced() { rm -f "$work/timer/trace"; "${strace[@]}" "$ctk" cdi verify "--spec-dir=$work/timer/specs" && opens_nvml; }
capabilities=$driver/proc/driver/nvidia/capabilities
again
check "verify opens NVML" traced
check "the timer does not, with MIG devices" sleeps
sed 's/^# machine: .*/# machine: driver 1.2.3, MIG 0/' "$work/timer/specs/nvidia.yaml" > "$work/timer/specs/another.yaml"
check "nor with another file, which the refresh does not write" sleeps
rm "$work/timer/specs/another.yaml"
program=$(sed -n 's/.*hostPath: \(.*nvidia-debugdump\)$/\1/p' "$work/timer/specs/nvidia.yaml")
mv "$program" "$work/timer/program"
check "a file of the specification is gone: the timer starts the refresh" wakes
check "afterwards it has nothing to do" sleeps
mv "$work/timer/program" "$program"
again
mkdir "$work/timer/instances"
instance=$(find "$capabilities" -name 'gi*' | head -1)
[ -n "$instance" ] || { echo "no MIG device here"; exit 1; }
mv "$instance" "$work/timer/instances/"
check "a MIG device is gone: the timer starts the refresh, which opens NVML" wakes
check "afterwards it has nothing to do" sleeps
mv "$work/timer/instances/${instance##*/}" "$instance"
check "a MIG device is new: the timer starts the refresh" wakes
check "afterwards it has nothing to do" sleeps
sed -i 's/^# machine: driver [^,]*/# machine: driver 1.2.3/' "$work/timer/specs/nvidia.yaml"
check "another driver, with MIG devices: the timer starts the refresh" wakes
cp -a "$capabilities" "$work/timer/capabilities"
find "$capabilities" -name 'gi*' -prune -exec rm -r {} +
again
check "without MIG devices it has nothing to do" sleeps
sed -i 's/^# machine: driver [^,]*/# machine: driver 1.2.3/' "$work/timer/specs/nvidia.yaml"
check "not even with another driver" sleeps
sed -i '/^# machine:/d' "$work/timer/specs/nvidia.yaml"
check "a file of an earlier version, which has no machine: the timer starts the refresh" wakes
check "afterwards it has nothing to do" sleeps
rm "$work/timer/specs/nvidia.yaml"
sleeps_without() { tick && ! opens_nvml && ! ls "$work/timer/refreshes"; }
check "without a specification it has nothing to do" sleeps_without
deleted() { echo "- $work/timer/specs/nvidia.yaml" > "$work/timer/written"; tick && opens_nvml && [ -e "$work/timer/specs/nvidia.yaml" ]; }
check "the refresh wrote one that somebody deleted: the timer starts it" deleted
rm "$work/timer/specs/nvidia.yaml"
check "once, unless it wrote another" sleeps_without
rm -r "$capabilities"
again
check "nor if the driver has no MIG" sleeps
cp -a "$work/timer/capabilities" "$capabilities"

# ---- engines -----------------------------------------------------------------------------------------------------------

mkdir -p "$work/docker" "$work/containerd"
printf '{"log-driver": "json-file",\n "features": {"buildkit": true}}' > "$work/docker/daemon.json"
cp "$work/docker/daemon.json" "$work/docker/before"
configure() { "$ctk" --quiet runtime configure "$@"; }
check "docker is configured" configure --runtime=docker "--config=$work/docker/daemon.json" --set-as-default "--runtime-path=$bin/nvidia-ctk"
check "docker is undone" configure --runtime=docker "--config=$work/docker/daemon.json" --remove
same_json() { python3 -c 'import json, sys; a, b = (json.load(open(f)) for f in sys.argv[1:]); sys.exit(a != b)' "$@"; }
check "nothing else has changed" same_json "$work/docker/before" "$work/docker/daemon.json"
containerd config default > "$work/containerd/config.toml"
# An empty list of imports goes with ours: nothing says later that it was there before.
sed '/^imports = \[\]$/d' "$work/containerd/config.toml" > "$work/containerd/before"
files=("--config=$work/containerd/config.toml" "--drop-in-config=$work/containerd/conf.d/99-nvidia.toml")
check "containerd is configured" configure --runtime=containerd "${files[@]}"
check "containerd takes it" says nvidia-container-runtime containerd --config "$work/containerd/config.toml" config dump
check "containerd is undone" configure --runtime=containerd "${files[@]}" --remove
check "nothing else has changed" cmp "$work/containerd/before" "$work/containerd/config.toml"
check "without the drop-in" refuses test -e "$work/containerd/conf.d/99-nvidia.toml"
for name in a b; do
  check "containerd gets the name $name" configure --runtime=containerd "${files[@]}" "--nvidia-runtime-name=$name" "--nvidia-runtime-path=$bin/nvidia-ctk"
done
dump() { containerd --config "$work/containerd/config.toml" config dump; }
check "containerd knows the first" says "runtimes.a.options" dump
check "and the second" says "runtimes.b.options" dump
check "the second is removed" configure --runtime=containerd "${files[@]}" --nvidia-runtime-name=b --remove
check "containerd knows the first still" says "runtimes.a.options" dump
check "but not the second" lacks "runtimes.b" dump
check "the first is removed" configure --runtime=containerd "${files[@]}" --nvidia-runtime-name=a --remove
check "nothing else has changed" cmp "$work/containerd/before" "$work/containerd/config.toml"

cd "$repository"
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
echo "all right"
