# docker of a plain user, in a user namespace of rootlesskit, under the user's systemd. To be sourced.
# shellcheck shell=bash

. /srv/engines/ways/docker.sh
. /srv/engines/ways/user.sh
has_mknod=
docker() { as_user docker -H unix:///run/user/1000/docker.sock "$@"; }
up() {
  user_session || return
  as_user mkdir -p /home/user/.config/docker
  echo '{"features": {"cdi": true}}' > /home/user/.config/docker/daemon.json
  chown 1000:1000 /home/user/.config/docker/daemon.json
  as_user nvidia-ctk --quiet runtime configure --runtime=docker --config=/home/user/.config/docker/daemon.json || return
  # rootlesskit shows another /etc and /run, in which these are links that docker does not follow.
  nvidia-ctk --quiet cdi generate --output=/opt/cdi/nvidia.yaml || return
  local directory=--cdi-spec-dir=/opt/cdi
  dockerd --help | grep -q cdi-spec-dir || directory=
  cat > /usr/local/bin/rootless-docker << EOF
#!/bin/sh
rootlesskit --net=host --copy-up=/etc --copy-up=/run --propagation=rslave --state-dir=/run/user/1000/rootlesskit sh -c '
rm -f /run/docker /run/containerd
exec dockerd --rootless --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs $directory \
  -H unix:///run/user/1000/docker.sock'
EOF
  chmod 755 /usr/local/bin/rootless-docker
  as_user systemd-run --user --unit=docker --property=Delegate=yes --property=KillMode=mixed /usr/local/bin/rootless-docker || return
  until_true 60 docker ps && docker_import
}
down() { as_user systemctl --user stop docker; }
# Units of the user's systemd have no filter of devices: an event below is one of the system's.
unit() { :; }
event_runtime-update() { update_by_runtime "as_user runc" "$(runtime_root /run/user/1000)" "$(identity)"; }
event_engine-restart() { as_user systemctl --user restart docker && until_true 60 docker ps && is_back; }
unset -f event_live-restore
