#!/bin/bash
# Makes services with GPUs in a machine that scripts/test/boots.sh has booted, and looks at them after a boot.
#
#   boots.sh prepare | refresh plain|slow|fails | look KIND NUMBER
set -uo pipefail
exec < /dev/null
. /srv/engines/look.sh

drop_in() { # UNIT: writes a drop-in of standard input
  mkdir -p "/etc/systemd/system/$1.d"
  cat > "/etc/systemd/system/$1.d/boots.conf"
}
has_quadlets() { [ -x /usr/lib/systemd/system-generators/podman-system-generator ]; }
docker_cdi() { [ "$(dockerd --version | sed 's/^Docker version \([0-9]*\).*/\1/')" -ge "$1" ]; }

prepare() {
  until_true 90 systemctl is-active -q multi-user.target docker.service || return 1
  tar -C /srv/image -c . > /srv/image.tar
  podman import -q /srv/image.tar localhost/image && docker import /srv/image.tar image || return 1
  # The units of docs/engines.md.
  has_quadlets && install -D -m 644 /dev/stdin /etc/containers/systemd/quadlet.container << 'END'
[Container]
ContainerName=quadlet
Image=localhost/image
AddDevice=nvidia.com/gpu=0
Network=none
Exec=sleep 1000

[Service]
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
END
  drop_in podman-restart.service << 'END'
[Service]
Restart=on-failure
RestartSec=5
END
  podman run -d --name restarted --restart=always --network=none --device nvidia.com/gpu=0 localhost/image sleep 1000 &&
    systemctl enable podman-restart.service || return 1
  docker run -d --name gpus --restart=always --net=none --gpus device=0 image sleep 1000 &&
    docker run -d --name runtime --restart=always --net=none --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0 image sleep 1000 || return 1
  # From 28.2 on docker starts such a container at boot.
  if docker_cdi 28; then docker run -d --name cdi --restart=always --net=none --device nvidia.com/gpu=0 image sleep 1000 || return 1; fi
  # A user whose services start at boot.
  useradd -m alice && mkdir -p /var/lib/systemd/linger && : > /var/lib/systemd/linger/alice
  install -d -o alice -g alice /home/alice/.config/systemd/user/default.target.wants
  printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/test -s /var/run/cdi/nvidia.yaml\nRestart=on-failure\nRestartSec=5\n' \
    > /home/alice/.config/systemd/user/plain.service
  ln -s ../plain.service /home/alice/.config/systemd/user/default.target.wants/plain.service
  chown -R alice /home/alice/.config
  # A unit as others write it, after the network: nothing may go in a circle with ours.
  printf '[Unit]\nWants=network-online.target\nAfter=network-online.target\n[Service]\nExecStart=/usr/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n' \
    > /etc/systemd/system/late.service
  systemctl enable late.service
}

refresh() { # KIND: how the next boot's refresh is
  case $1 in
    plain) rm -rf /etc/systemd/system/nvidia-cdi-refresh.service.d ;;
    slow) printf '[Service]\nExecStartPre=/bin/sleep 2\n' ;;
    fails) printf '[Service]\nExecStartPre=/bin/sh -c "[ -e /run/tried ] || { : > /run/tried; exit 1; }"\n' ;;
  esac | if [ "$1" = plain ]; then cat; else drop_in nvidia-cdi-refresh.service; fi
  sync
}

eventually() { # SECONDS COMMAND...: as until_true, but shows what the command says in the end
  until_true "$@" > /dev/null || "${@:2}"
}
no_cycle() { ! journalctl -b 2> /dev/null | grep -i 'ordering cycle'; }
of_alice() { [ "$(systemctl --user -M alice@ show -P ActiveState plain.service)" = active ]; }

look() { # KIND NUMBER
  title "$1, boot $2"
  check "boot ends" until_true 120 systemctl is-active -q multi-user.target docker.service
  check "systemd-analyze verify" systemd-analyze verify --man=no nvidia-cdi-refresh.service late.service multi-user.target
  check "nothing goes in a circle" no_cycle
  check "the specification is there" eventually 30 test -s /var/run/cdi/nvidia.yaml
  if has_quadlets; then check "a quadlet" eventually 60 sees 0 -- podman exec quadlet; else echo "-      a quadlet: this podman has none"; fi
  check "podman-restart" eventually 30 sees 0 -- podman exec restarted
  check "docker --gpus" eventually 30 sees 0 mknod -- docker exec gpus
  check "docker, the runtime" eventually 30 sees 0 mknod -- docker exec runtime
  # docker does not try again.
  if [ "$1" != fails ] && docker_cdi 28; then check "docker, CDI" eventually 30 sees 0 mknod -- docker exec cdi; fi
  check "a lingering user's unit" eventually 30 of_alice
  if [ "$1" != fails ]; then
    ! has_quadlets || check "the quadlet started once" [ "$(systemctl show -P NRestarts quadlet.service)" = 0 ]
    check "podman-restart started once" [ "$(systemctl show -P NRestarts podman-restart.service)" = 0 ]
    check "the user's unit started once" [ "$(systemctl --user -M alice@ show -P NRestarts plain.service)" = 0 ]
  fi
}

"$@"
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
