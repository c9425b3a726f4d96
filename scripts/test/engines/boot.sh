#!/bin/bash
# Installs the units as the packages do and becomes systemd; for scripts/test/{units,boots,engines}.sh.
set -euo pipefail

mkdir -p "/usr/lib/modules/$(uname -r)" /etc/docker
printf '{"features": {"cdi": true}, "iptables": false, "ip6tables": false, "bridge": "none", "storage-driver": "vfs"}' \
  > /etc/docker/daemon.json
units="nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer"
if ls /srv/packages/*.deb > /dev/null 2>&1; then
  # The packages' scripts enable the units, without a running systemd, and register the runtime.
  dpkg -i /srv/packages/*.deb
  for unit in $units nvidia-docker-plugin.socket; do systemctl --root=/ is-enabled "$unit"; done
  grep -q nvidia-container-runtime /etc/docker/daemon.json
else
  cp /srv/pkg/systemd/*.service /srv/pkg/systemd/*.path /srv/pkg/systemd/*.timer /srv/pkg/systemd/*.socket /usr/lib/systemd/system/
  install -D -m 644 /srv/pkg/systemd/90-nvidia-cdi-refresh.preset /usr/lib/systemd/system-preset/90-nvidia-cdi-refresh.preset
  install -D -m 644 /srv/pkg/systemd/nvidia-docker.sysusers /usr/lib/sysusers.d/nvidia-docker.conf
  nvidia-ctk --quiet runtime configure --runtime=docker
  # shellcheck disable=SC2086 # several words
  systemctl --root=/ preset $units
  systemctl --root=/ enable nvidia-docker-plugin.socket
fi
# No module nvidia can be loaded here, and this kernel may have none that can: an event of another device stands for it.
sed 's/SUBSYSTEM=="module", KERNEL=="nvidia|nvidia_current"/SUBSYSTEM=="mem", KERNEL=="full"/' \
  /srv/pkg/udev/99-nvidia-cdi-refresh.rules > /usr/lib/udev/rules.d/99-nvidia-cdi-refresh.rules
grep -q 'KERNEL=="full"' /usr/lib/udev/rules.d/99-nvidia-cdi-refresh.rules
# Nor is a driver registered, and without a GPU on PCI only the links of existing nodes can be made.
sed 's/SUBSYSTEM=="drivers", DEVPATH=="[^"]*"/SUBSYSTEM=="mem", KERNEL=="full"/; s/ --create-all --load-kernel-modules//' \
  /srv/pkg/udev/71-nvidia-dev-char.rules > /usr/lib/udev/rules.d/71-nvidia-dev-char.rules
grep -q 'KERNEL=="full".*create-dev-char-symlinks"' /usr/lib/udev/rules.d/71-nvidia-dev-char.rules
echo 'kernel/drivers/video/nvidia.ko:' > "/usr/lib/modules/$(uname -r)/modules.dep"
# The machine's devices are not this root's.
ln -sf /dev/null /etc/systemd/system/systemd-udev-trigger.service
[ -n "${NVC_KEPT:-}" ] || ln -sf /dev/null /etc/systemd/system/containerd.service
ln -sf /dev/null /etc/systemd/system/getty.target
ln -sf /dev/null /etc/systemd/system/console-getty.service
# udev makes it for the machine's devices.
mkdir -p /dev/char
rm -f /etc/machine-id && : > /etc/machine-id
: > /etc/fstab
systemctl --root=/ set-default multi-user.target
systemctl --root=/ enable docker.service
[ -n "${NVC_KEPT:-}" ] || systemctl --root=/ disable containerd.service podman.service podman-restart.service || true
# docker.service asks for containerd's unit; dockerd finds the socket or starts its own.
mkdir -p /etc/systemd/system/docker.service.d
printf '[Unit]\nWants=\nAfter=network.target\nStartLimitIntervalSec=0\n[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H unix:///run/docker.sock\nLimitNOFILE=\nLimitNPROC=\nLimitCORE=\nOOMScoreAdjust=0\n' \
  > /etc/systemd/system/docker.service.d/plain.conf
# Without it, and with a /dev that is not a devtmpfs, systemd assumes that udev is absent.
mkdir -p /run/udev && : > /run/udev/control
exec /usr/lib/systemd/systemd --system --show-status=no --log-target=console --log-level=info
