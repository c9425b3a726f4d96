#!/bin/bash
# Checks `make install` on a machine: a fresh Debian, which scripts/packages/check.sh runs it in, with the repository in
# /src and its build, for PREFIX=/usr/local, in /build.
#
#   install.sh VERSION
set -euo pipefail
. /packages/common.sh

version=$1
units="nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket"

# All files except the package managers' own.
files() {
  find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -path /packages -o -path /sim -o -path /src -o -path /build -o -path /var/cache -o -path /var/log \
    -o -path /run -o -path /etc/ld.so.cache -o -path '/etc/*-' -o -path /etc/.pwd.lock -o -path /var/lib/nvidia-docker \) -prune -o -print | sort
}
install_() { cd /src && BUILD=/build PREFIX=/usr/local scripts/build/install.sh "$@"; }

has_user_and_units() {
  getent passwd nvidia-docker | grep ':/usr/sbin/nologin$'
  [ "$(stat -c %U /var/lib/nvidia-docker)" = nvidia-docker ]
  called daemon-reload
  called enable "$units"
  called start nvidia-cdi-refresh.path nvidia-cdi-verify.timer nvidia-docker-plugin.socket
  grep -q '^ExecStart=/usr/local/bin/' /usr/local/lib/systemd/system/nvidia-cdi-refresh.service
}

# containerd and CRI-O get the runtime beside nvidia-ctk; dockerd finds it by its name, or else gets the path.
engines_get_the_runtime() {
  local runtime=/usr/local/bin/nvidia-container-runtime
  nvidia-ctk runtime configure --runtime=containerd
  grep -qx "BinaryName = \"$runtime\"" /etc/containerd/conf.d/99-nvidia.toml
  nvidia-ctk runtime configure --runtime=crio
  grep -qx "runtime_path = \"$runtime\"" /etc/crio/crio.conf.d/99-nvidia.toml
  nvidia-ctk runtime configure --runtime=docker
  grep -q '"path": "nvidia-container-runtime"' /etc/docker/daemon.json
  # Nobody's PATH has this one.
  mkdir -p /opt/nv/bin
  cp -a /usr/local/bin/nvidia-ctk $runtime /opt/nv/bin/
  mv $runtime /tmp/
  /opt/nv/bin/nvidia-ctk runtime configure --runtime=docker --dry-run > /tmp/printed
  mv /tmp/nvidia-container-runtime $runtime
  rm -r /opt/nv
  grep -q '"path": "/opt/nv/bin/nvidia-container-runtime"' /tmp/printed
}

flags='-std=c99 -Wall -Wextra -Werror'
# shellcheck disable=SC2046,SC2086 # several words
links_statically() {
  cc $flags -static -o /tmp/static /packages/devices.c $(pkg-config --cflags libnvidia-container) \
    $(pkg-config --static --libs libnvidia-container)
  ! readelf -d /tmp/static | grep NEEDED
  /tmp/static /sim | grep '^gpu '
}
# shellcheck disable=SC2046,SC2086
links() {
  cc $flags -o /tmp/shared /packages/devices.c $(pkg-config --cflags --libs libnvidia-container)
  /tmp/shared /sim | grep '^gpu '
}

# Engines forget the runtime before it goes.
uninstalls() {
  install_ --uninstall > /tmp/said 2>&1 || { cat /tmp/said; return 1; }
  cat /tmp/said
  grep -q 'systemctl restart docker' /tmp/said # the others are not there
  called disable --now "$units" nvidia-docker-plugin.service
  [ ! -e /etc/docker/daemon.json ]
  ! grep -r nvidia /etc/docker /etc/containerd /etc/crio
  rm -r /etc/docker /etc/containerd /etc/crio
  # The user stays, as its files may.
  userdel nvidia-docker
  remove_systemctl
  rm -rf /var/lib/nvidia-docker
  find /usr/local -mindepth 1 -type d -empty -delete
}

find /usr/local -mindepth 1 -type d -empty -delete
files > /tmp/before
install_systemctl
forget
check "make install" install_
check "makes the user, and enables the units" has_user_and_units
check "engines get the runtime that was installed" engines_get_the_runtime
check "a C program links" links
check "and statically, by pkg-config" links_statically
check "make uninstall leaves working engines" uninstalls
check "and no file" nothing_left
[ $failures = 0 ]
