# podman as root with systemd's cgroups, by crun and by runc: hooks.d, the runtime, CDI devices. To be sourced with the
# name of the engine, podman-crun or podman-runc, in $engine.
# shellcheck shell=bash disable=SC2154 # engine

has_mknod=mknod
# The directory of hooks counts whenever a container is started.
podman() { command podman "--runtime=${runtime:-${engine#podman-}}" --hooks-dir=/etc/nvidia-hooks "$@"; }
up() {
  # podman's option needs the directory, also for containers without hooks.
  mkdir -p /etc/nvidia-hooks
  generate && tar -C /srv/image -cf /tmp/image.tar . && podman import /tmp/image.tar image
}
start() { # WAY GPU
  local way
  rm -f /etc/nvidia-hooks/*
  runtime=
  case $1 in
    hook)
      cp /srv/pkg/hooks/oci-nvidia-hook.json /etc/nvidia-hooks/
      way=(-e "NVIDIA_VISIBLE_DEVICES=$2")
      ;;
    runtime)
      runtime=/usr/bin/nvidia-container-runtime
      way=(-e "NVIDIA_VISIBLE_DEVICES=$2")
      ;;
    cdi) way=(--device "nvidia.com/gpu=$2") ;;
  esac
  # The machine may lack controllers and CAP_SYS_RESOURCE.
  podman run -d --name one --network=none --pids-limit=0 --ulimit nofile=20000:20000 --ulimit nproc=4096:4096 \
    ${has_mknod:+--cap-add=MKNOD} "${way[@]}" image sleep 10000
}
in_it() { podman exec one "$@"; }
identity() { podman inspect -f '{{.Id}}' one; }
unit() { echo "libpod-$(identity).scope"; }
remove() { podman rm -f -t 0 one; }
down() { :; }

event_engine-update() { may_lack_controllers podman update --cpu-shares=512 one; }
event_runtime-update() {
  case ${runtime:-${engine#podman-}} in
    crun) update_by_runtime crun /run/crun "$(identity)" ;;
    *) update_by_runtime runc "$(runtime_root /run)" "$(identity)" ;;
  esac
}
event_restart() { podman restart -t 0 one; }
event_stop-start() { podman stop -t 0 one && podman start one; }
