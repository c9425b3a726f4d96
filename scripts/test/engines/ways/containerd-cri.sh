# containerd as a kubelet uses it, with systemd's cgroups: the runtime class nvidia, CDI devices. To be sourced.
# shellcheck shell=bash

has_mknod=mknod
. /srv/engines/ways/containerd.sh
socket=/run/containerd/containerd.sock
up() {
  containerd_up || return
  # containerd says which image it wants for a pod.
  pause=$(containerd config dump 2> /dev/null | sed -n "s/^ *sandbox\(_image\)\{0,1\} = ['\"]\(.*\)['\"]/\2/p" | head -1)
  import_image "$pause"
}
start() { # WAY GPU
  local way
  case $1 in
    runtime) way=(--handler nvidia --env "NVIDIA_VISIBLE_DEVICES=$2") ;;
    cdi) way=(--device "nvidia.com/gpu=$2") ;;
    annotation) way=(--annotation "cdi.k8s.io/nvc=nvidia.com/gpu=$2") ;;
  esac
  nvc-cri $socket start --cgroup-parent system.slice "${way[@]}" "$pause" > /run/cri-ids && cat /run/cri-ids
}
in_it() { nvc-cri $socket exec "$(identity)" "$@"; }
identity() { sed -n 2p /run/cri-ids; }
unit() { echo "cri-containerd-$(identity).scope"; }
remove() { nvc-cri $socket remove "$(sed -n 1p /run/cri-ids)"; }
event_runtime-update() { update_by_runtime runc "$(runtime_root /run/containerd)" "$(identity)"; }
