# systemd-nspawn: the command line configures the container of a running machine. To be sourced.
# shellcheck shell=bash

has_mknod=
up() {
  cp -a /srv/image /srv/nspawn && mkdir -p /srv/nspawn/sim && until_true 20 systemctl start systemd-machined
}
start() { # WAY GPU
  systemd-run --unit=nspawn-one systemd-nspawn --quiet --machine=one --directory=/srv/nspawn --private-network --as-pid2 \
    --bind-ro=/srv/sim/proc/driver:/sim sleep 10000 || return
  until_true 30 sleeps || return
  # A kernel with the modules shows it in every procfs.
  mount --namespace "$(leader)" --bind /sim /proc/driver || return
  nvidia-container-cli configure "--pid=$(leader)" "--device=$2" --compute --utility /
}
leader() { machinectl show -p Leader --value one 2> /dev/null | grep .; }
# Its root is complete when it runs its program.
sleeps() { pgrep -x sleep -P "$(leader)" || [ "$(cat "/proc/$(leader)/comm")" = sleep ]; }
in_it() {
  bash -c 'echo $$ > "/sys/fs/cgroup$1/cgroup.procs" && leader=$2 && shift 2 &&
    exec nsenter -t "$leader" -m -u -i -p -n -C -r -w env PATH=/usr/bin:/bin:/sbin "$@"' bash "$(cgroup)" "$(leader)" "$@"
}
cgroup() { sed -n 's/^0:://p' "/proc/$(leader)/cgroup"; }
unit() { machinectl show -p Unit --value one; }
remove() {
  machinectl terminate one
  until_true 20 gone
  systemctl reset-failed nspawn-one
}
gone() { ! systemctl is-active -q nspawn-one; }
down() { :; }
