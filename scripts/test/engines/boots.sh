#!/bin/bash
# Makes services with GPUs in a machine that scripts/test/boots.sh has booted, and looks at them after a boot.
#
#   boots.sh prepare | refresh plain|slow|fails | look KIND NUMBER
set -uo pipefail
exec < /dev/null
. /srv/engines/look.sh
. /srv/engines/ways/containerd.sh

drop_in() { # UNIT: writes a drop-in of standard input
  mkdir -p "/etc/systemd/system/$1.d"
  cat > "/etc/systemd/system/$1.d/boots.conf"
}
way() { # NAME COMMAND...: a check that is a cell of the table, which scripts/test/boots.sh prints
  local before=$wrong
  check "$@"
  if [ $wrong = "$before" ]; then echo "$1|$kind|+"; else echo "$1|$kind|-"; fi >> /srv/cells
}
has_quadlets() { [ -x /usr/lib/systemd/system-generators/podman-system-generator ]; }
docker_cdi() { [ "$(dockerd --version | sed 's/^Docker version \([0-9]*\).*/\1/')" -ge "$1" ]; }

as_alice() {
  local uid
  uid=$(id -u alice)
  setpriv --reuid=alice --regid=alice --init-groups env -C / HOME=/home/alice USER=alice "XDG_RUNTIME_DIR=/run/user/$uid" \
    "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$uid/bus" "$@"
}
unit_of_document() { # TITLE: the block of docs/engines.md with that first line, for images and programs of this machine
  awk -v title="# $1" '$0 == title { found = 1; next } /^```$/ { found = 0 } found' /srv/engines/engines.md |
    sed 's,docker.io/nvidia/cuda[^ ]*,localhost/image:latest,; s,nvidia-smi -l,sleep 1000,' | grep .
}
quadlet() { # DIRECTORY TARGET
  install -d "$1"
  unit_of_document "a quadlet" > "$1/quadlet.container" || return
  sed -i "s/^WantedBy=.*/WantedBy=$2/; s/^\[Container\]/&\nContainerName=quadlet\nNetwork=none/" "$1/quadlet.container"
}

prepare() {
  until_true 90 systemctl is-active -q multi-user.target docker.service || return 1
  tar -C /srv/image -c . > /srv/image.tar
  podman import -q /srv/image.tar localhost/image && docker import /srv/image.tar image || return 1
  # This machine lacks controllers, CAP_SYS_RESOURCE and a network.
  [ -e /usr/bin/catatonit ] || install -D -m 755 /srv/engines/catatonit /usr/libexec/podman/catatonit
  mkdir -p /etc/containers
  printf '[containers]\npids_limit = 0\ndefault_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]\n' \
    > /etc/containers/containers.conf
  if has_quadlets; then
    quadlet /etc/containers/systemd multi-user.target && unit_of_document "pods of kube play" > /etc/containers/systemd/played.kube &&
      unit_of_document "/etc/gpu.yaml" > /etc/gpu.yaml || return 1
  fi
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
  useradd -m alice && loginctl enable-linger alice && until_true 30 as_alice systemctl --user is-active basic.target || return 1
  install -d /home/alice/.config/{containers,systemd/user/default.target.wants,systemd/user/podman-restart.service.d}
  printf '[storage]\ndriver = "vfs"\n' > /home/alice/.config/containers/storage.conf
  ! has_quadlets || quadlet /home/alice/.config/containers/systemd default.target || return 1
  printf '[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/test -s /var/run/cdi/nvidia.yaml\nRestart=on-failure\nRestartSec=5\n' \
    > /home/alice/.config/systemd/user/plain.service
  ln -s ../plain.service /home/alice/.config/systemd/user/default.target.wants/plain.service
  cp /etc/systemd/system/podman-restart.service.d/boots.conf /home/alice/.config/systemd/user/podman-restart.service.d/
  chown -R alice:alice /home/alice/.config
  as_alice podman import -q /srv/image.tar localhost/image && as_alice systemctl --user enable podman-restart.service &&
    as_alice podman run -d --name restarted --restart=always --network=none --device nvidia.com/gpu=0 localhost/image sleep 1000 || return 1
  # containerd alone.
  containerd_up && systemctl enable containerd && unit_of_document "containerd alone" > /etc/systemd/system/gpu.service &&
    import_image localhost/image:latest && ctr images import /tmp/cri.tar && systemctl enable gpu.service || return 1
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
in_task() { ctr task exec --exec-id "e$RANDOM$RANDOM" gpu "$@"; }

look() { # KIND NUMBER
  local kind=$1
  title "$1, boot $2"
  check "boot ends" until_true 120 systemctl is-active -q multi-user.target docker.service
  check "systemd-analyze verify" systemd-analyze verify --man=no nvidia-cdi-refresh.service late.service multi-user.target
  check "nothing goes in a circle" no_cycle
  check "the specification is there" eventually 30 test -s /var/run/cdi/nvidia.yaml
  if has_quadlets; then
    way "podman: a quadlet" eventually 60 sees 0 -- podman exec quadlet
    way "podman: kube play" eventually 60 sees 0 -- podman exec pod-played
    way "rootless podman: a quadlet" eventually 60 sees 0 -- as_alice podman exec quadlet
  else
    echo "-      this podman has no quadlets"
  fi
  way "podman: \`--restart=always\`" eventually 30 sees 0 -- podman exec restarted
  way "rootless podman: \`--restart=always\`" eventually 30 sees 0 -- as_alice podman exec restarted
  way "docker: \`--gpus\`" eventually 30 sees 0 mknod -- docker exec gpus
  way "docker: the runtime" eventually 30 sees 0 mknod -- docker exec runtime
  if ! docker_cdi 28; then
    echo "-      this docker starts no container with CDI by itself"
  elif [ "$1" != fails ]; then
    way "docker: \`--device nvidia.com/gpu=0\`" eventually 30 sees 0 mknod -- docker exec cdi
  else
    # It does not try again.
    echo "docker: \`--device nvidia.com/gpu=0\`|$1|-" >> /srv/cells
  fi
  way "containerd: the runtime" eventually 30 sees 0 mknod -- in_task
  way "a user's unit in \`default.target\`" eventually 30 of_alice
  if [ "$1" != fails ]; then
    if has_quadlets; then
      check "the quadlet started once" [ "$(systemctl show -P NRestarts quadlet.service)" = 0 ]
      check "the pod started once" [ "$(systemctl show -P NRestarts played.service)" = 0 ]
      check "the user's quadlet started once" [ "$(systemctl --user -M alice@ show -P NRestarts quadlet.service)" = 0 ]
    fi
    check "podman-restart started once" [ "$(systemctl show -P NRestarts podman-restart.service)" = 0 ]
    check "the user's unit started once" [ "$(systemctl --user -M alice@ show -P NRestarts plain.service)" = 0 ]
  fi
}

"$@" || exit 1
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
