# docker with userns-remap: root of a container is a plain user of the machine. To be sourced.
# shellcheck shell=bash

. /srv/engines/ways/docker.sh
# The container may not create device nodes.
has_mknod=
up() {
  id dockremap > /dev/null 2>&1 || useradd --system --no-create-home dockremap
  grep -q dockremap /etc/subuid || echo dockremap:300000:65536 | tee -a /etc/subuid >> /etc/subgid
  configure_docker '"userns-remap": "default"' && docker_import
}
down() { configure_docker; }
