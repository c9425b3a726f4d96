#!/bin/bash
# Runs recipes of recipes.md in a machine that systemd runs, for scripts/test/recipes.sh. Each must list GPU 0 alone.
set -uo pipefail
exec < /dev/null
. /srv/engines/look.sh
. /srv/engines/ways/user.sh

gpu='GPU 0: NVIDIA L4 (simulated) (UUID: GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10)'
commands() { # SECTION [NUMBER]: its commands, or those of one block
  awk -v section="## $1" -v number="${2:-0}" '
    /^## / { is_it = $0 == section; next }
    is_it && /^```sh/ { block++; open = 1; next }
    /^```/ { open = 0; next }
    open && (!number || block == number)' /srv/engines/recipes.md | grep .
}
lists() { # TIMES COMMAND...: it prints the GPU that often, and no other
  local times=$1 found
  shift
  "$@" > /tmp/listed 2>&1 || { cat /tmp/listed; return 1; }
  found=$(grep -E '^(GPU|  MIG) ' /tmp/listed | tr -d '\r')
  [ "$found" = "$(for _ in $(seq "$times"); do echo "$gpu"; done)" ] || { cat /tmp/listed; return 1; }
}
until_true 90 systemctl is-active -q multi-user.target docker.service || { systemctl --no-pager --failed; exit 1; }

# ---- systemd-nspawn --------------------------------------------------------------------------------------------------

# A kernel with the driver's modules shows them in every procfs; here machinectl does, before it says who the leader is.
nspawn() {
  cp -a /srv/image /srv/debian && mkdir -p /srv/debian/sim /srv/work && cd /srv/work || return
  until_true 20 systemctl start systemd-machined
  mkdir -p /usr/local/bin
  cat > /usr/local/bin/systemd-nspawn << 'END'
#!/bin/sh
exec /usr/bin/systemd-nspawn --private-network --bind-ro=/srv/sim/proc/driver:/sim "$@"
END
  cat > /usr/local/bin/machinectl << 'END'
#!/bin/sh
leader=$(/usr/bin/machinectl "$@") && [ "/proc/$leader/root" -ef /srv/debian ] || exit
mount --namespace "$leader" --bind /sim /proc/driver && echo "$leader"
END
  chmod 755 /usr/local/bin/systemd-nspawn /usr/local/bin/machinectl
  commands systemd-nspawn > recipe && bash -euo pipefail recipe
}
check "systemd-nspawn" lists 1 timeout 60 bash -c "$(declare -f until_true commands nspawn); nspawn"

# ---- rootless docker -------------------------------------------------------------------------------------------------

rootless() {
  user_session || return
  cat > /usr/local/bin/dockerd-rootless << 'END'
#!/bin/sh
exec rootlesskit --net=host --copy-up=/etc --copy-up=/run --propagation=rslave --state-dir=/run/user/1000/rootlesskit sh -c '
rm -f /run/docker /run/containerd
exec dockerd --rootless --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs -H unix:///run/user/1000/docker.sock'
END
  chmod 755 /usr/local/bin/dockerd-rootless
  printf '[Service]\nExecStart=/usr/local/bin/dockerd-rootless\nDelegate=yes\nKillMode=mixed\n' > /etc/systemd/user/docker.service
  tar -C /srv/image -cf /tmp/image.tar . && chmod 644 /tmp/image.tar
  as_user systemctl --user daemon-reload && as_user systemctl --user start docker || return
  until_true 60 user_docker ps && user_docker import /tmp/image.tar debian || return
  # The first block is root's.
  commands "Rootless docker" 1 | sed 's/^sudo //' | bash -euo pipefail || return
  { echo 'docker() { until /usr/bin/docker ps > /dev/null 2>&1; do sleep 0.2; done; /usr/bin/docker "$@"; }'
    commands "Rootless docker" 2; } > /tmp/recipe
  chmod 644 /tmp/recipe
  cd / && as_user env DOCKER_HOST=unix:///run/user/1000/docker.sock bash -euo pipefail /tmp/recipe
}
user_docker() { as_user docker -H unix:///run/user/1000/docker.sock "$@"; }
# Without CDI, docker 20.10 does not know the key.
if dockerd --help | grep -q cdi-spec-dir; then
  check "Rootless docker" lists 3 rootless
else
  echo "SKIPPED Rootless docker: $(dockerd --version) has no CDI"
fi
[ $wrong = 0 ]
