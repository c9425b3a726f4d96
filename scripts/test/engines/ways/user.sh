# A plain user of the machine with a session of systemd's. To be sourced.
# shellcheck shell=bash

as_user() {
  setpriv --reuid=1000 --regid=1000 --init-groups env HOME=/home/user USER=user STORAGE_DRIVER=vfs \
    XDG_RUNTIME_DIR=/run/user/1000 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus "$@"
}
user_session() {
  id user > /dev/null 2>&1 || useradd --create-home --uid 1000 user || return
  loginctl enable-linger user && until_true 30 as_user systemctl --user is-active basic.target
}
