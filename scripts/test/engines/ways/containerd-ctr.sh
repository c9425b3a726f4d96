# containerd by ctr with systemd's cgroups: `--gpus` (the command line as a hook), the runtime, CDI. To be sourced.
# shellcheck shell=bash

has_mknod=mknod
. /srv/engines/ways/containerd.sh
up() { containerd_up; }
start() { # WAY GPU
  local way
  case $1 in
    hook) way=(--gpus "$2") ;;
    runtime) way=(--runc-binary=/usr/bin/nvidia-container-runtime --env "NVIDIA_VISIBLE_DEVICES=$2") ;;
    cdi) way=(--device "nvidia.com/gpu=$2") ;;
  esac
  ctr run -d --rootfs --runc-systemd-cgroup --cgroup system.slice:ctr:c --env "PATH=$PATH" "${way[@]}" /srv/image c sleep 10000
}
in_it() { ctr task exec --exec-id "e$RANDOM$RANDOM" c "$@"; }
unit() { echo ctr-c.scope; }
remove() {
  ctr task kill -s KILL c
  until_true 10 stopped
  ctr task rm c
  ctr container rm c
}
stopped() { ! ctr task ls | grep -q '^c .*RUNNING'; }
event_runtime-update() { update_by_runtime runc /run/containerd/runc/default c; }
event_stop-start() { ctr task kill -s KILL c && until_true 10 stopped && ctr task rm c && ctr task start -d c; }
