# podman of a plain user: hooks.d, the runtime, CDI devices. To be sourced.
# shellcheck shell=bash

. /srv/engines/ways/podman.sh
. /srv/engines/ways/user.sh
has_mknod=
podman() { as_user podman "--runtime=${runtime:-$rootless}" --hooks-dir=/etc/nvidia-hooks "$@"; }
rootless=${engine#podman-rootless-}
up() {
  user_session || return
  mkdir -p /etc/nvidia-hooks
  cd /
  generate && tar -C /srv/image -cf /tmp/image.tar . && podman import /tmp/image.tar image
}
# Units of the user's systemd have no filter of devices.
unit() { :; }
event_runtime-update() {
  case ${runtime:-$rootless} in
    crun) update_by_runtime "as_user crun" /run/user/1000/crun "$(identity)" ;;
    *) update_by_runtime "as_user runc" "$(runtime_root /run/user/1000)" "$(identity)" ;;
  esac
}
