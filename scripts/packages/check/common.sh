# To be sourced by the parts of scripts/packages/check.sh.
# shellcheck shell=bash disable=SC2034 # used by the sourcing scripts

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }

failures=0
# check WHAT COMMAND...: runs COMMAND with `set -e`, shows its output only on failure
check() {
  local what=$1 log status=0
  shift
  log=$(mktemp)
  # In the background, since a condition would disable `set -e` in it.
  (set -euo pipefail; "$@") > "$log" 2>&1 &
  wait $! || status=$?
  if [ $status = 0 ]; then
    say "  PASS: $what"
  else
    say "  FAIL: $what (status $status)"
    tail -n 40 "$log" | sed 's/^/    /'
    failures=$((failures + 1))
  fi
  rm -f "$log"
}

# ---- in a root of its own ----------------------------------------------------------------------------------------------

# The sourcing script has the functions `files`, which lists the root's files, and `clean`, which restores the root.
# A failed clean-up leaves files, which the next check reports.
try() { check "$@"; clean > /dev/null 2>&1 || true; }
nothing_left() { files > /tmp/after && diff /tmp/before /tmp/after; }

export DEBIAN_FRONTEND=noninteractive LC_ALL=C
config=/etc/nvidia-container-runtime/config.toml
unit_state=/tmp/systemctl

# A systemctl that only notes its arguments; the roots have no other. Everything is active and enabled.
install_systemctl() {
  mkdir -p /run/systemd/system
  printf '#!/bin/sh\necho "$*" >> %s\n' $unit_state > /usr/bin/systemctl
  chmod 755 /usr/bin/systemctl
  rm -f $unit_state
}
remove_systemctl() {
  rm -f /usr/bin/systemctl
  rm -rf /run/systemd
}
# called ARGUMENTS...: systemctl was called so since the last `forget`
called() { grep -qxF -- "$*" $unit_state || { cat $unit_state; return 1; }; }
not_called() { ! grep -F -- "$*" $unit_state; }
forget() { : > $unit_state; }

edit_config() { mkdir -p ${config%/*} && echo '# mine' >> $config; }
# The administrator's line is there, and there is no other copy.
keeps_config() {
  ls -l ${config%/*}
  [ "$(tail -n 1 $config)" = '# mine' ] && [ "$(ls ${config%/*})" = config.toml ]
}
# daemon.json as an administrator has it.
write_daemon_json() {
  mkdir -p /etc/docker
  printf '{\n   "log-driver": "local"   ,"runtimes": {"x": {"path": "/x"}}\n}' > /etc/docker/daemon.json
  cp /etc/docker/daemon.json /tmp/daemon.json
}
# The file has them again; how lists are spread over lines may differ.
same_settings() { cat "$1"; diff <(tr -d ' \n' < /tmp/daemon.json) <(tr -d ' \n' < "$1"); }
has_runtime() {
  cat /etc/docker/daemon.json
  grep -q '"nvidia"' /etc/docker/daemon.json && grep -q '"x"' /etc/docker/daemon.json &&
    ! grep -q default-runtime /etc/docker/daemon.json
}

# Every program of the toolkit runs, by each of its names.
toolkit_answers() {
  local program
  for program in nvidia-container-runtime-hook nvidia-container-toolkit nvidia-cdi-hook nvidia-ctk; do
    "$program" --version | grep -F " version $version" || { echo "$program"; return 1; }
  done
  nvidia-container-cli --version | grep -Fx "cli-version: $version" || return 1
  gpu-kubelet-plugin --version | grep -Fx "gpu-kubelet-plugin $version" || return 1
  printf '#!/bin/sh\necho "low-level $*"\n' > /usr/local/bin/runc
  chmod 755 /usr/local/bin/runc
  for program in nvidia-container-runtime nvidia-container-runtime.cdi nvidia-container-runtime.legacy; do
    "$program" state x | grep -Fx 'low-level state x' || { echo "$program"; return 1; }
  done
  rm /usr/local/bin/runc
}

# The programs know each other by what was recorded before the packages were stripped.
build_ids_fit() {
  local id name count=0
  while read -r id name; do
    readelf -n "/usr/bin/$name" | grep -q "Build ID: $id\$" || { echo "$name has another build id than $id"; return 1; }
    count=$((count + 1))
  done < /usr/share/nvidia-container-toolkit/build-ids
  [ $count = 4 ] || { echo "$count build ids are recorded"; return 1; }
}

# No file of a stand-in for NVIDIA's packages is left: each contains "old".
nothing_old() {
  local found
  found=$(find /usr /etc -xdev -type f -size -5c -exec grep -lx old {} + 2>/dev/null || true)
  [ -z "$found" ] || { echo "of the old packages: $found"; return 1; }
}
