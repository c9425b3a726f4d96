#!/bin/bash
# Purges the packages in a machine that scripts/test/purge.sh has booted, while docker's default is our runtime.
set -uo pipefail
exec < /dev/null
. /srv/engines/look.sh
export DEBIAN_FRONTEND=noninteractive

base=nvidia-container-toolkit-base toolkit=nvidia-container-toolkit
daemon=/etc/docker/daemon.json
plain='"features": {"cdi": true}, "iptables": false, "ip6tables": false, "bridge": "none", "storage-driver": "vfs"'

package() { # NAME DEPENDS PROGRAM...: a package of these programs, with the scripts of the real one
  local name=$1 depends=$2 root=/srv/made/$1 script
  shift 2
  mkdir -p "$root/DEBIAN" "$root/usr/bin"
  printf '%s\n' "Package: $name" 'Version: 1' 'Architecture: all' 'Maintainer: nobody <nobody@example.com>' \
    "Description: test" ${depends:+"Depends: $depends"} > "$root/DEBIAN/control"
  for script in preinst postinst prerm postrm; do
    [ ! -e "/srv/pkg/debian/$name.$script" ] || install -m 755 "/srv/pkg/debian/$name.$script" "$root/DEBIAN/$script"
  done
  for program; do cp "/usr/bin/$program" "$root/usr/bin/"; done
  dpkg-deb -Znone -b "$root" /srv/packages > /dev/null
}
if ! ls /srv/packages/*.deb > /dev/null 2>&1; then
  package $base '' nvidia-container-runtime nvidia-cdi-hook nvidia-ctk
  package $toolkit $base nvidia-container-runtime-hook
  package nvidia-docker2 $toolkit
fi

install_them() { # PACKAGE...: with the runtime registered as the default
  systemctl stop docker.service docker.socket
  printf '{%s}' "$plain" > $daemon
  systemctl start docker.service && apt-get install -y "$@" &&
    nvidia-ctk runtime configure --runtime=docker --nvidia-set-as-default && systemctl restart docker.service
}
has_default() { [ "$(docker info -f '{{.DefaultRuntime}}')" = "$1" ]; }
runs_works() { docker rm -f works; docker run -d --name works --net=none image sleep 1000; }
dry_run() { nvidia-ctk runtime unregister --dry-run 2>&1 | grep -F 'running containers of docker use a runtime that is being removed'; }
purge() { apt-get purge -y 'nvidia-*' > /tmp/purged 2>&1 || { cat /tmp/purged; return 1; }; }
no_program() { [ ! -e /usr/bin/nvidia-container-runtime ] && [ ! -e /usr/bin/nvidia-ctk ]; }
# It is named once, before the first program goes.
named_in_time() {
  cat /tmp/purged
  [ "$(grep -c 'docker cannot stop them: works;' /tmp/purged)" = 1 ] &&
    sed "/^Removing $base /q" /tmp/purged | grep -q 'docker cannot stop them: works;'
}
last_is() { cat /tmp/purged; grep 'level=' /tmp/purged | tail -n 1 | grep -F -- "$1"; }
nothing_to_do() { cat /tmp/purged; ! grep -i 'msg=.*restart docker' /tmp/purged; }
starts() { docker run --rm --net=none image sh -c :; }
as_it_was() { cat $daemon; [ "$(tr -d ' \n' < $daemon)" = "{$(tr -d ' ' <<< "$plain")}" ]; }
# docker cannot stop it any more: the printed command does.
said_command_ends_it() {
  local pid
  pid=$(sed -n 's/.*or later: kill -KILL \([0-9]*\)".*/\1/p' /tmp/purged)
  kill -KILL "$pid"
  until_true 20 eval "! kill -0 $pid"
}

title "docker $(dockerd --version | awk '{ print $3 }' | tr -d ,)"
check "boot ends" until_true 90 systemctl is-active -q multi-user.target docker.service
tar -C /srv/image -c . | docker import - image > /tmp/log 2>&1

for packages in "/srv/packages/$base*.deb /srv/packages/${toolkit}_*.deb" "/srv/packages/*.deb"; do
  title "$packages"
  # shellcheck disable=SC2086 # patterns
  check "the packages are installed" install_them $packages
  check "their runtime is the default" has_default nvidia
  check "a container runs" runs_works
  check "a dry run names it" dry_run
  check "the purge" purge
  check "the programs are gone" no_program
  check "the container was named, once" named_in_time
  check "docker's default is its own" has_default runc
  check "nothing is left to do" nothing_to_do
  check "the printed command ends the container" said_command_ends_it
  check "docker starts a container" starts
  check "its file is as it was" as_it_was
done

title "the default runtime is on dockerd's command line"
drop_in=/etc/systemd/system/docker.service.d/zz.conf
on_the_line() {
  # shellcheck disable=SC2086
  install_them /srv/packages/$base*.deb /srv/packages/${toolkit}_*.deb && printf '{%s}' "$plain" > $daemon
  printf '[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H unix:///run/docker.sock --add-runtime nvidia=/usr/bin/nvidia-container-runtime --default-runtime=nvidia\n' > $drop_in
  systemctl daemon-reload && systemctl restart docker.service && has_default nvidia
}
check "the packages are installed" on_the_line
check "the purge" purge
check "its last line has what is to be done" last_is "remove --default-runtime and --add-runtime from dockerd's command line, then: systemctl restart docker"
rm $drop_in
check "that is done" eval 'systemctl daemon-reload && systemctl restart docker.service'
check "docker starts a container" starts

title "dockerd runs by hand"
by_hand() {
  # shellcheck disable=SC2086
  install_them /srv/packages/$base*.deb /srv/packages/${toolkit}_*.deb && systemctl stop docker.service
  start_by_hand && has_default nvidia
}
start_by_hand() {
  setsid dockerd -H unix:///run/docker.sock > /tmp/dockerd.log 2>&1 &
  hand=$!
  until_true 30 docker info
}
check "the packages are installed" by_hand
check "the purge" purge
hand=$(pgrep -x dockerd)
check "its last line has what is to be done" last_is "Restart docker to apply that: kill $hand, then start dockerd as before"
kill "$hand"
check "dockerd ends" until_true 30 eval '! pgrep -x dockerd'
check "and starts" start_by_hand
check "docker starts a container" starts
pkill -x dockerd

[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
echo "$tried checks"
