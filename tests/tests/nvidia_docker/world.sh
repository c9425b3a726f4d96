# Plays a machine with docker 20.10 and a simulated driver, in namespaces of its own; a script runs in it.
#
#   unshare --mount --pid --net --fork --kill-child --propagation private bash world.sh DRIVER IMAGE SCRATCH PROGRAMS SCRIPT
#
# DRIVER is a simulated driver's root, IMAGE a container's, SCRATCH an empty directory, PROGRAMS has the built programs.
# The machine's files are seen below the driver's, through an overlay whose changes go to a tmpfs. The files in the
# directory NVC_WORLD_LAYER, if it is set, are above both.
set -euo pipefail
driver=$1 image=$2 scratch=$3 programs=$4 script=$5

mount -t tmpfs -o mode=755 tmpfs "$scratch"
mkdir -p "$scratch"/{layer/etc,layer/srv,changes,work,root}
cp -a "$driver/usr" "$scratch/layer/"
cp -a "$driver/etc/ld.so.cache" "$driver/etc/nvidia-sim" "$scratch/layer/etc/"
install -m 755 "$programs"/nvidia-docker{,-plugin} "$scratch/layer/usr/bin/"
cp -a "$image" "$scratch/layer/srv/image"
cp -a "$driver/proc/driver/nvidia" "$scratch/layer/srv/image/sim-proc"
ip link set lo up
mount -t overlay -o "lowerdir=${NVC_WORLD_LAYER:+$NVC_WORLD_LAYER:}$scratch/layer:/,upperdir=$scratch/changes,workdir=$scratch/work" overlay "$scratch/root"
cd "$scratch/root"
mount -t proc proc proc
mount -t tmpfs -o mode=555 tmpfs proc/driver
mkdir proc/driver/nvidia
mount --bind "$driver/proc/driver/nvidia" proc/driver/nvidia
mount --bind "$driver/proc/devices" proc/devices
mount --rbind /sys sys
for directory in run tmp var/lib dev; do mount -t tmpfs -o mode=755 tmpfs $directory; done
mkdir -m 755 dev/pts dev/shm var/lib/docker
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
  IFS=: read -r name major minor <<< "$node"
  mknod -m 666 "dev/$name" c "$major" "$minor"
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
find "$driver/dev" -type c | while read -r node; do
  name=${node#"$driver"/}
  mkdir -p "${name%/*}"
  cp -a "$node" "$name"
done
mkdir -p old
pivot_root . old
umount -l /old
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
unset DOCKER_HOST DOCKER_CONTEXT NV_HOST NV_GPU NV_DOCKER NV_BACKEND NV_DRY_RUN
cd /

# until_true SECONDS COMMAND...
until_true() {
  local tries=$(($1 * 20))
  shift
  while ! "$@" >/dev/null 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "world: never true: $*" >&2; return 1; }
    sleep 0.05
  done
}

start_docker() {
  dockerd --iptables=false --ip6tables=false --bridge=none --data-root=/var/lib/docker --exec-root=/run/docker \
    --storage-driver=vfs "$@" > /run/dockerd.log 2>&1 &
  docker_pid=$!
  until_true 120 docker version || { tail -5 /run/dockerd.log >&2; return 1; }
}

start_plugin() {
  nvidia-docker-plugin "$@" > /run/plugin.log 2>&1 &
  plugin_pid=$!
  until_true 120 curl -fsS "http://${address:-localhost:3476}/healthz" || { cat /run/plugin.log >&2; return 1; }
}

# The image `cuda` has the labels of the first nvidia-docker, `modern` says what today's images say, `plain` nothing.
import_images() {
  local environment='ENV PATH=/usr/local/nvidia/bin:/usr/bin:/bin LD_LIBRARY_PATH=/usr/local/nvidia/lib64'
  environment+=' NVIDIA_SIM_PROC=/sim-proc'
  tar -C /srv/image -c . > /tmp/image.tar
  docker import -c "$environment" -c 'LABEL com.nvidia.volumes.needed=nvidia_driver' \
    -c 'LABEL com.nvidia.cuda.version=11.0.3' /tmp/image.tar cuda >/dev/null
  docker import -c "$environment" /tmp/image.tar plain >/dev/null
  docker import -c "$environment" -c 'ENV NVIDIA_VISIBLE_DEVICES=all' -c 'ENV CUDA_VERSION=12.2.0' \
    /tmp/image.tar modern >/dev/null
}

# same WHAT EXPECTED ACTUAL
same() {
  [ "$2" = "$3" ] || { printf 'world: %s\n  expected: %s\n  actual:   %s\n' "$1" "$2" "$3" >&2; return 1; }
}

# comes WHAT PART COMMAND...: waits until the command prints the part; until then, it may fail.
comes() {
  local what=$1 part=$2 actual='' tries=600
  shift 2
  while [ $tries -gt 0 ]; do
    actual=$("$@") || true
    case $actual in *"$part"*) return 0 ;; esac
    tries=$((tries - 1))
    sleep 0.1
  done
  has "$what" "$part" "$actual"
}

# has WHAT PART WHOLE
has() {
  case $3 in
    *"$2"*) ;;
    *) printf 'world: %s\n  should have: %s\n  is:          %s\n' "$1" "$2" "$3" >&2; return 1 ;;
  esac
}

# Everything that a script starts ends with the process-id namespace.
eval "$script"
