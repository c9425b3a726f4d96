# Units of docker's containers: those whose list of devices is not ours to close, what is above them, and what is left
# of them. To be sourced by systemd.sh.
# shellcheck shell=bash

. /srv/engines/ways/docker.sh

run_all() {
  up > /tmp/log 2>&1 || { line FAILED "docker does not start" /tmp/log; return; }
  possible "a privileged container's unit keeps its open list" privileged
  expect "daemon-reexec leaves a container its GPU" reexec
  expect "a closed slice above is an error that names it" closed_slice
  expect "nothing is left of a container's unit" gone_unit
  # Later engines and the units' own tests find docker as it was.
  systemctl stop closed.slice 2> /dev/null
}
possible() { # TEXT COMMAND: it needs a privileged container
  if docker run --rm --net=none --privileged image sh -c : > /tmp/log 2>&1; then
    expect "$@"
  elif lacks_sys_resource; then
    line SKIPPED "$1: docker $(dockerd --version | awk '{ print $3 }' | tr -d ,) --privileged needs CAP_SYS_RESOURCE, which this machine lacks"
  else
    line FAILED "$1: a privileged container does not start" /tmp/log
  fi
}
lacks_sys_resource() { # as said by the kernel, and by runc
  local bounding
  bounding=$(sed -n 's/^CapBnd:\t//p' /proc/self/status)
  (((0x$bounding >> 24 & 1) == 0)) && grep -iE 'capabilit|caps|rlimit' /tmp/log
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
reexec() {
  local result=1
  start hook 1 && systemctl daemon-reexec && until_true 20 systemctl is-active docker && sees 1 mknod -- in_it && result=0
  remove
  return $result
}
closed_slice() {
  printf '[Slice]\nDevicePolicy=strict\nDeviceAllow=/dev/null rw\n' > /run/systemd/system/closed.slice
  systemctl daemon-reload && systemctl start closed.slice || return
  says "the device filter of cgroup /sys/fs/cgroup/closed.slice denies" \
    docker run --rm --net=none --cgroup-parent=closed.slice --gpus device=1 image true || return
  systemctl show -p DeviceAllow closed.slice | tee /tmp/list
  ! grep 195 /tmp/list
}
gone_unit() {
  local unit
  start hook 1 && unit=$(unit) && systemctl show -p DeviceAllow "$unit" | grep '/dev/char/195:1 ' || { remove; return 1; }
  remove
  until_true 20 not_there "$unit" && ! find /run/systemd /etc/systemd -name "*$unit*" | grep .
}
not_there() { ! systemctl is-active -q "$1"; }
