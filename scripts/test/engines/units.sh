#!/bin/bash
# Checks the units in a machine that scripts/test/units.sh has booted.
set -uo pipefail
exec 3<&0 < /dev/null
. /srv/engines/look.sh

spec=/var/run/cdi/nvidia.yaml
monotonic() { systemctl show -P "$2" "$1"; }
result() { [ "$(systemctl show -P Result "$1")" = success ] || { systemctl status --no-pager "$1"; return 1; }; }
runs() { # GPU [OPTIONS...]: a container of docker with that GPU
  sees "$1" mknod -- docker run --rm --net=none --cap-add=MKNOD "${@:2}" image
}
has() { grep -qF -- "$1" "$spec" || { cat "$spec"; return 1; }; }
refreshed() { [ "$(systemctl show -P ActiveState nvidia-cdi-refresh.service)" != activating ]; }
lacks() { ! grep -F -- "$1" "$spec"; }
# docker before 25 has no CDI.
has_cdi() { [ "$(dockerd --version | sed 's/^Docker version \([0-9]*\).*/\1/')" -ge 25 ]; }
check_cdi() { if has_cdi; then check "$@"; else echo "-      $1: this docker has no CDI"; fi; }

title "$(systemctl --version | head -1), docker $(dockerd --version | awk '{ print $3 }' | tr -d ,)"
check "systemd-analyze verify" systemd-analyze verify --man=no /usr/lib/systemd/system/nvidia-*
check "boot ends" until_true 90 systemctl is-active -q multi-user.target docker.service
check "the refresh service succeeded" result nvidia-cdi-refresh.service
check "the specification is there" test -s $spec
before_docker() {
  local refreshed started
  refreshed=$(monotonic nvidia-cdi-refresh.service ExecMainExitTimestampMonotonic)
  started=$(monotonic docker.service ExecMainStartTimestampMonotonic)
  echo "$refreshed $started"
  [ "$refreshed" -gt 0 ] && [ "$refreshed" -le "$started" ]
}
check "it was written before docker started" before_docker
check "the path unit waits" systemctl is-active -q nvidia-cdi-refresh.path
check "the timer waits" systemctl is-active -q nvidia-cdi-verify.timer
check "the plugin's socket waits" systemctl is-active -q nvidia-docker-plugin.socket

tar -C /srv/image -c . | docker import - image > /tmp/log 2>&1
check "docker's cgroups are systemd's" grep -qx systemd <(docker info -f '{{.CgroupDriver}}')
check_cdi "CDI" runs 0 --device nvidia.com/gpu=0
check "the runtime" runs 1 --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1

title "doctor asks the running docker"
docker_is() { grep -q "^$1" <(nvidia-ctk doctor | grep -E '^(WRONG|advice|ok) +docker'); }
check "all is well" docker_is ok
cp /etc/docker/daemon.json /tmp/daemon.json
check "another runtime" nvidia-ctk --quiet runtime configure --runtime=docker --nvidia-runtime-name=nvidia-two
check "docker does not know it" says "dockerd does not know the runtime nvidia-two" nvidia-ctk doctor
check "the repair" systemctl reload docker
check "repairs" until_true 10 docker_is ok
cp /tmp/daemon.json /etc/docker/daemon.json
check "as before" systemctl reload docker
mkdir -p /run/nvidia-container-toolkit
cut -d' ' -f1 /proc/uptime > /run/nvidia-container-toolkit/hook-installed
check "a hook that is newer than docker" docker_is "WRONG.*was started before"
check "the repair" systemctl restart docker
check "repairs" until_true 20 docker_is ok

title "daemon-reload while GPU containers run"
! has_cdi || docker run -d --net=none --name cdi --cap-add=MKNOD --device nvidia.com/gpu=0 image sleep 1000 > /dev/null
docker run -d --net=none --name runtime --cap-add=MKNOD --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1 image sleep 1000 > /dev/null
docker run -d --net=none --name gpus --cap-add=MKNOD --gpus device=1 image sleep 1000 > /dev/null
check_cdi "before" sees 0 mknod -- docker exec cdi
check "before" sees 1 mknod -- docker exec runtime
check "before" sees 1 mknod -- docker exec gpus
check "daemon-reload" systemctl daemon-reload
sleep 1
check_cdi "CDI after it" sees 0 mknod -- docker exec cdi
check "the runtime after it" sees 1 mknod -- docker exec runtime
check "--gpus (the hook alone) after it" sees 1 mknod -- docker exec gpus
docker rm -f runtime gpus > /dev/null
! has_cdi || docker rm -f cdi > /dev/null

title "the plugin"
ask() { # PATH: what the plugin answers
  exec 4<> /dev/tcp/127.0.0.1/3476 || return 1
  printf 'GET %s HTTP/1.0\r\nHost: localhost:3476\r\n\r\n' "$1" >&4
  timeout 30 cat <&4
  exec 4>&-
}
check "the socket starts it" grep -q NVIDIA <(ask /gpu/status/json; ask /gpu/info/json)
check "it runs as its own user" grep -qx nvidia-docker <(ps -o user= -p "$(systemctl show -P MainPID nvidia-docker-plugin.service)")
tar -C /srv/image -c . | docker import -c 'ENV PATH=/usr/local/nvidia/bin:/usr/bin:/bin LD_LIBRARY_PATH=/usr/local/nvidia/lib64' \
  -c 'LABEL com.nvidia.volumes.needed=nvidia_driver' - cuda > /tmp/log 2>&1
volume() { NV_GPU=0 NV_BACKEND=volume nvidia-docker run --rm --net=none cuda nvidia-smi -L | grep '^GPU 0: NVIDIA L4'; }
check "its volume" volume
check "it stops" systemctl stop nvidia-docker-plugin.service
check "the socket starts it again" grep -q ok <(ask /healthz)
systemctl stop nvidia-docker-plugin.service
nvml=$(find /usr/lib -name 'libnvidia-ml.so.5*' -path '*x86_64*')
mount --bind /dev/null "$nvml"
modprobe=$(command -v nvidia-modprobe) && mount --bind /bin/false "$modprobe"
unhealthy() { for _ in 1 2 3 4 5 6 7 8; do grep -q '^HTTP/1.[01] 503' <(ask /healthz) || return 1; done; }
check "without a driver it answers" unhealthy
is_over() { [ "$(systemctl show -P ActiveState nvidia-docker-plugin.service)" = inactive ]; }
check "ends without a failure" until_true 60 is_over
check "and the socket still waits" systemctl is-active -q nvidia-docker-plugin.socket
umount "$nvml"
[ -z "$modprobe" ] || umount "$modprobe"
check "with a driver it works again" grep -q ok <(ask /healthz)

title "the driver's module is loaded"
stamp() { stat -c %y $spec; }
renewed() { [ "$(stamp)" != "$old" ]; }
old=$(stamp)
# The refresh makes links too.
mkdir -p /run/systemd/system/nvidia-cdi-refresh.service.d
printf '[Service]\nExecStartPost=\n' > /run/systemd/system/nvidia-cdi-refresh.service.d/no-links.conf
systemctl daemon-reload
find /dev/char -lname '*nvidia*' -delete
if systemctl is-active -q systemd-udevd.service; then
  check "an event" udevadm trigger --action=add --settle /sys/devices/virtual/mem/full
  check "udev starts the refresh" until_true 20 renewed
  check "udev makes the links in /dev/char" until_true 5 test /dev/char/195:0 -ef /dev/nvidia0
else
  systemctl status --no-pager systemd-udevd.service
  check "udevd runs" false
fi
rm -r /run/systemd/system/nvidia-cdi-refresh.service.d
systemctl daemon-reload
find /dev/char -lname '*nvidia*' -delete
until_true 20 refreshed
check "the refresh" systemctl restart nvidia-cdi-refresh.service
check "makes them too" test /dev/char/195:0 -ef /dev/nvidia0

# Its minute must not come between a change and the check of it.
systemctl stop nvidia-cdi-verify.timer

title "a driver update"
old=$(stamp)
version() { sed -n 's/^NVRM version: .*Module *\([0-9.]*\) .*/\1/p' /proc/driver/nvidia/version; }
check "verify is content" nvidia-ctk --quiet cdi verify
find /usr/lib /usr/bin -name '*570.124.06*' -delete
cp -a /srv/engines/new-driver/usr/. /usr/
cp -a /srv/engines/new-driver/etc/nvidia-sim/. /etc/nvidia-sim/
cp /srv/engines/new-driver/proc/driver/nvidia/version /srv/sim/proc/driver/nvidia/version
ldconfig
check "verify reports it" says "570.124.06" nvidia-ctk cdi verify
echo 'kernel/drivers/video/nvidia.ko: other.ko' > "/usr/lib/modules/$(uname -r)/modules.dep"
check "the path unit starts the refresh" until_true 20 renewed
until_true 20 has 575.57.08 > /dev/null
check "the specification has the new driver" has 575.57.08
check "and nothing of the old" lacks 570.124.06
check "verify is content" nvidia-ctk --quiet cdi verify
sleep 1
check_cdi "the running docker takes it" runs 0 --device nvidia.com/gpu=0

title "MIG devices change"
check_cdi "a MIG device" sees_mig docker run --rm --net=none --device nvidia.com/gpu=1:0 image
old=$(stamp)
check "without a change the timer's service starts nothing" systemctl start nvidia-cdi-verify.service
sleep 2
check "and the specification stays" test "$(stamp)" = "$old"
capabilities=/srv/sim/proc/driver/nvidia/capabilities/gpu1/mig
cp -a $capabilities /tmp/mig
sed -i '/^mig /d; s/mig=on/mig=off/' /etc/nvidia-sim/profile
rm -r $capabilities/gi*
find /dev/nvidia-caps -name 'nvidia-cap1[45]*' -delete
check "the timer's service" systemctl start nvidia-cdi-verify.service
check "starts the refresh" until_true 20 has 'name: "1"'
check "the MIG devices are gone" lacks 'name: 1:0'
check "verify is content" nvidia-ctk --quiet cdi verify
sleep 1
check_cdi "the running docker gives the whole GPU" runs 1 --device nvidia.com/gpu=1
sed -i 's/mig=off/mig=on/; $a mig gpu=1 slot=0 gi=1 ci=0 uuid=MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030 name=3g.40gb' /etc/nvidia-sim/profile
for number in 147 148; do mknod -m 444 /dev/other$number c 511 $number; mv /dev/other$number /dev/nvidia-caps/nvidia-cap$number; done
cp -a /tmp/mig/gi1 $capabilities/
check "the timer's service repairs the rest" systemctl start nvidia-cdi-verify.service
until_true 20 has 'name: "1:0"' > /dev/null || until_true 1 has 'name: 1:0' > /dev/null
check "verify is content" nvidia-ctk --quiet cdi verify

title "a specification that was deleted, or has another path"
# What it wrote is noted at its end.
until_true 20 refreshed
rm $spec
check "the timer's service" systemctl start nvidia-cdi-verify.service
check "starts the refresh" until_true 20 test -s $spec
until_true 20 refreshed
mkdir -p /etc/nvidia-container-toolkit
echo NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/gpus.yaml > /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
check "another path" systemctl start nvidia-cdi-refresh.service
check "has the file" test -s /etc/cdi/gpus.yaml
check "the former file is gone" test ! -e $spec
rm /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
check "the former path" systemctl start nvidia-cdi-refresh.service
check "has the file" test -s $spec -a ! -e /etc/cdi/gpus.yaml

title "a boot with other major numbers"
until_true 20 refreshed
sed 's/^509 nvidia-uvm$/507 nvidia-uvm/; s/^511 nvidia-caps$/506 nvidia-caps/' /proc/devices > /tmp/devices
mount --bind /tmp/devices /proc/devices
# A boot begins without nodes; specifications name them by path and stay valid. Those of MIG are made by the driver's own
# program, with the new number too.
cp $spec /tmp/spec
rm /dev/nvidia-uvm /dev/nvidia-uvm-tools
for number in 147 148; do mknod -m 444 /dev/other$number c 506 $number; mv /dev/other$number /dev/nvidia-caps/nvidia-cap$number; done
check "verify reports the missing nodes" says nvidia-uvm nvidia-ctk cdi verify
check "the refresh makes the new nodes" systemctl start nvidia-cdi-refresh.service
check "with the new number" grep -qx '1fb' <(stat -c %t /dev/nvidia-uvm)
check "verify is content" nvidia-ctk --quiet cdi verify
check "the specification is the same" diff <(grep -v '^#' /tmp/spec) <(grep -v '^#' $spec)
number() { docker run --rm --net=none --device nvidia.com/gpu=0 image ls -l /dev/nvidia-uvm | grep '507, *0'; }
check_cdi "the running docker gives the new node" number

[ -z "${NVC_UNITS_SHELL:-}" ] || bash <&3
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
echo "all right"
