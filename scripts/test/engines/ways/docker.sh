# docker as root: --gpus (the hook), the runtime, CDI devices, and CDI devices by the runtime. To be sourced.
# shellcheck shell=bash

has_mknod=mknod
docker() { command docker "$@"; }
up() { configure_docker && docker_import; }
# Writes daemon.json as boot.sh does, with more settings, and starts docker with it.
configure_docker() { # [SETTING...]
  settings "$@" && generate && systemctl restart docker && until_true 60 docker ps
}
settings() { # [SETTING...]
  printf '{"features": {"cdi": true}, "iptables": false, "ip6tables": false, "bridge": "none", "storage-driver": "vfs"%s}' \
    "$(printf ', %s' "$@" | sed 's/^, $//')" > /etc/docker/daemon.json
  nvidia-ctk --quiet runtime configure --runtime=docker
}
docker_import() { tar -C /srv/image -c . | docker import - image; }
start() { # WAY GPU
  local way
  case $1 in
    hook) way=(--gpus "device=$2") ;;
    runtime) way=(--runtime=nvidia -e "NVIDIA_VISIBLE_DEVICES=$2") ;;
    cdi) way=(--device "nvidia.com/gpu=$2") ;;
    cdi-by-runtime) way=(--runtime=nvidia -e "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=$2") ;;
  esac
  # A restart of the engine starts it again.
  docker run -d --name one --net=none --restart=always ${has_mknod:+--cap-add=MKNOD} "${way[@]}" image sleep 10000
}
in_it() { docker exec one "$@"; }
identity() { docker inspect -f '{{.Id}}' one; }
unit() { echo "docker-$(identity).scope"; }
running() { [ "$(docker inspect -f '{{.State.Running}}' one)" = true ]; }
remove() { docker rm -f one; }
down() { :; }

event_engine-update() { docker update --restart=no one && docker update --restart=always one; }
event_runtime-update() { update_by_runtime runc "$(runtime_root /run/docker /run/containerd)" "$(identity)"; }
event_restart() { docker restart -t 0 one; }
event_stop-start() { docker stop -t 0 one && docker start one; }
event_engine-restart() { systemctl restart docker && until_true 60 docker ps && is_back; }
is_back() { until_true 15 running || return $stopped; }
# A restart that leaves containers alone.
event_live-restore() {
  local started
  started=$(docker inspect -f '{{.State.StartedAt}}' one)
  live_restore true && event_engine-restart || return
  [ "$(docker inspect -f '{{.State.StartedAt}}' one)" = "$started" ] || { echo "it was started again"; return 1; }
  live_restore false
}
live_restore() { settings "\"live-restore\": $1" && systemctl reload docker && sleep 0.5; }
