# Units whose list of devices is not ours to close, and what is left of a container. To be sourced by systemd.sh.
# shellcheck shell=bash

engine=untouched
. /srv/engines/ways/docker.sh

run_untouched() {
  title $engine
  up > /tmp/log 2>&1 || { line FAILED "docker does not start" /tmp/log; return; }
  if docker run --rm --net=none --privileged image sh -c : > /tmp/log 2>&1; then
    expect "a privileged container's unit keeps its open list" privileged
  else
    line SKIPPED "a privileged container does not start on this machine" /tmp/log
  fi
  expect "nothing is left of a container's unit" gone_unit
}
expect() { # TEXT COMMAND...
  local text=$1
  shift
  if "$@" > /tmp/log 2>&1; then line ok "$text"; else line FAILED "$text" /tmp/log; fi
}
is_open() { # UNIT: one entry in its list would close every other device
  systemctl show -p DevicePolicy -p DeviceAllow "$1" | tee /tmp/list
  grep -qx DevicePolicy=auto /tmp/list && ! grep -q '^DeviceAllow=.' /tmp/list
}
privileged() {
  local result=1
  docker run -d --name one --net=none --privileged --gpus device=1 image sleep 10000 || { remove; return 1; }
  # /dev/full has none of the answers of a closed device.
  is_open "$(unit)" && opens /dev/nvidia1 "$granted" && opens /dev/full && systemctl daemon-reload &&
    opens /dev/nvidia1 "$granted" && opens /dev/full && result=0
  remove
  return $result
}
opens() { # NODE [ANSWER]
  docker exec one sh -c "(exec 3<$1) 2>&1; true" | tee /tmp/opened
  if [ "${2:-}" ]; then grep -q "$2" /tmp/opened; else [ ! -s /tmp/opened ]; fi
}
gone_unit() {
  local unit
  start hook 1 && unit=$(unit) && systemctl show -p DeviceAllow "$unit" | grep '/dev/char/195:1 ' || { remove; return 1; }
  remove
  until_true 20 not_there "$unit" && ! find /run/systemd /etc/systemd -name "*$unit*" | grep .
}
not_there() { ! systemctl is-active -q "$1"; }
