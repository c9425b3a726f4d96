# Containers made by hand in units of systemd, for which nvidia-container-cli decides by the cgroup's content whether
# systemd is told. To be sourced by systemd.sh.
# shellcheck shell=bash

run_all() {
  generate
  expect "a unit that is the container's alone is told" alone
  expect "a unit with another process is not told" beside
  expect "a worker's unit is not extended, and the error names it" worker
  expect "a supervisor beside its container is no other process" supervised
  expect "systemd-nspawn@.service is told, and keeps the GPU" nspawn_service
  expect "a login session stays open" session
  expect "a failure sets the former list again" failure
  expect "a failure leaves an empty list empty" empty_list
}

# The container's root, for the container's first process.
root=/srv/hand
make() { # MANNER [OPTION...]: starts the container in a unit with these properties
  local manner=$1
  shift
  rm -rf /srv/hand && cp -a /srv/image /srv/hand
  systemd-run --quiet --unit=hand -p Delegate=yes "$@" bash /srv/engines/hand.sh "$manner" /srv/hand || return
  until_true 20 first
}
# The container's first process: its root is complete when it runs its program.
first() {
  local pid
  for pid in $(pgrep -x sleep); do
    [ "$(readlink "/proc/$pid/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ] || { echo "$pid"; return; }
  done
  return 1
}
gone() { ! first; }
end() {
  systemctl kill -s KILL hand 2> /dev/null
  for pid in $(first); do kill -KILL "$pid"; done
  until_true 20 gone
  systemctl stop hand 2> /dev/null
  systemctl reset-failed hand 2> /dev/null
  true
}
during() { # FUNCTION MANNER [OPTION...]: with such a container
  local result=1
  make "${@:2}" && "$1" && result=0
  [ $result = 0 ] || systemctl status --no-pager hand
  end
  return $result
}
configure() { # [OPTION...]
  nvidia-container-cli configure "$@" "--pid=$(first)" --device=0 --utility $root > /tmp/said 2>&1
}
give() { # [TEXT]: configures it; the messages have that text, or there are none
  configure || { cat /tmp/said; return 1; }
  if [ $# = 0 ]; then [ ! -s /tmp/said ]; else grep -F -- "$1" /tmp/said; fi || { cat /tmp/said; return 1; }
}
group() { sed -n 's/^0:://p' "/proc/$(first)/cgroup"; }
opens() {
  bash -c 'echo $$ > "/sys/fs/cgroup$1/cgroup.procs" && exec nsenter -t "$2" -m -r sh -c "exec 3< $3/dev/nvidia0"' bash \
    "$(group)" "$(first)" "${root%/}" > /tmp/opened 2>&1
  cat /tmp/opened
  grep -q "$granted" /tmp/opened
}
list() { systemctl show -p DevicePolicy -p DeviceAllow "${1:-hand}" | sort; }
keeps() { # [UNIT]: systemd knows the device
  list "$@" | grep '^DeviceAllow=/dev/char/195:0 rw' && opens && systemctl daemon-reload && opens &&
    systemctl set-property --runtime "${1:-hand}" "TasksMax=$((1000 + RANDOM % 1000))" && opens && systemctl daemon-reexec && opens
}
lacks() { ! list | grep 195; }
refuses() {
  local before
  before=$(list)
  ! configure || return
  cat /tmp/said
  grep -qF "the device filter of cgroup /sys/fs/cgroup/system.slice/hand.service denies 195:255, 195:0" /tmp/said &&
    grep -qF "set-property --runtime hand.service DeviceAllow='/dev/char/195:255 rw'" /tmp/said && diff <(echo "$before") <(list) || return
  # The way out is one.
  eval "$(sed -n 's/.*\(systemctl set-property --runtime hand.service DeviceAllow.* rw'"'"'\).*/\1/p' /tmp/said | head -1)" &&
    configure && opens && systemctl daemon-reload && opens
}

alone() { during told alone -p DevicePolicy=closed; }
told() { give && keeps; }
beside() { during untold beside -p DevicePolicy=closed; }
untold() { give "hand.service is left alone, because process" && lacks && opens; }
worker() { during refuses worker -p DevicePolicy=closed; }
supervised() { during told supervised -p DevicePolicy=strict -p DeviceAllow="/dev/null rw"; }
session() { during in_session alone -p User=root -p PAMName=login; }
in_session() {
  local unit
  unit=$(basename "$(group)")
  echo "$unit"
  case $unit in session-*.scope) ;; *) return 1 ;; esac
  give && opens && list "$unit" | tee /tmp/list && grep -qx DevicePolicy=auto /tmp/list && ! grep -q '^DeviceAllow=.' /tmp/list
}
failure() { during undone supervised -p DevicePolicy=closed -p DeviceAllow="/dev/full r" -p DeviceAllow="char-pts rwm"; }
empty_list() { during undone supervised -p DevicePolicy=closed; }
undone() {
  local before
  before=$(list)
  printf '#!/bin/sh\nexit 1\n' > /tmp/failing && chmod 755 /tmp/failing
  ! configure --ldconfig=@/tmp/failing || return
  cat /tmp/said
  grep -q ldconfig /tmp/said && diff <(echo "$before") <(list) && ! opens && told
}

# The template's unit has a closed list of its own. Its container is the machine's own system without an init.
nspawn_service() {
  local result=1 root=/
  mkdir -p /run/systemd/nspawn /var/lib/machines/hand /run/systemd/system/systemd-nspawn@hand.service.d
  cp -a /srv/image/. /var/lib/machines/hand/
  printf '[Exec]\nBoot=no\nProcessTwo=yes\nPrivateUsers=no\nParameters=sleep 10000\n[Files]\nBindReadOnly=/srv/sim/proc/driver:/sim\n[Network]\nPrivate=yes\nVirtualEthernet=no\n' \
    > /run/systemd/nspawn/hand.nspawn
  printf '[Service]\nExecStart=\nExecStart=systemd-nspawn --quiet --keep-unit --link-journal=no --settings=override --machine=%%i\n' \
    > /run/systemd/system/systemd-nspawn@hand.service.d/hand.conf
  systemctl daemon-reload && systemctl start systemd-nspawn@hand.service && until_true 30 first &&
    mount --namespace "$(first)" --bind /sim /proc/driver && list systemd-nspawn@hand.service && group &&
    give && keeps systemd-nspawn@hand.service && result=0
  [ $result = 0 ] || systemctl status --no-pager systemd-nspawn@hand.service
  systemctl stop systemd-nspawn@hand.service
  rm -rf /run/systemd/system/systemd-nspawn@hand.service.d /run/systemd/nspawn
  systemctl daemon-reload
  return $result
}
