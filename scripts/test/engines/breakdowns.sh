#!/bin/bash
# Breaks a machine that scripts/test/breakdowns.sh has booted, and repairs it by what `nvidia-ctk doctor` prints.
#
#   breakdowns.sh prepare | rounds | round NAME | after
#
# Each round is followed by a boot. No two breakdowns of a round change the same file, so that each repair is still there.
set -uo pipefail
exec < /dev/null
. /srv/engines/look.sh
. /srv/engines/ways/containerd.sh

config=/etc/nvidia-container-runtime/config.toml
daemon=/etc/docker/daemon.json
environment=/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
spec=/var/run/cdi/nvidia.yaml
unit=nvidia-cdi-refresh.service
libraries=/usr/lib/x86_64-linux-gnu
saved=/srv/saved
is_content() { nvidia-ctk doctor > /tmp/doctor; grep -q '^0 wrong, 0 advice' /tmp/doctor || { cat /tmp/doctor; return 1; }; }
has_cdi() { [ "$(dockerd --version | sed 's/^Docker version \([0-9]*\).*/\1/')" -ge 25 ]; }

prepare() {
  until_true 90 systemctl is-active -q multi-user.target docker.service || return 1
  # What the simulated driver lacks.
  for manifest in vulkan/icd.d/nvidia_icd.json glvnd/egl_vendor.d/10_nvidia.json OpenCL/vendors/nvidia.icd; do
    install -D -m 644 /dev/null "/etc/$manifest"
  done
  for number in 1 2 3; do mkdir -p "$saved/$number"; done
  useradd -m alice
  tar -C /srv/image -c . > /srv/image.tar && docker import /srv/image.tar image > /dev/null && podman import -q /srv/image.tar image || return 1
  containerd_up && systemctl enable containerd || return 1
  # What runc 1.1 wants.
  nvidia-ctk --quiet system create-dev-char-symlinks
  is_content
}
containers_start() {
  sees 0 mknod -- docker run --rm --net=none --gpus device=0 image && sees 0 mknod -- docker run --rm --net=none --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0 image &&
    sees 0 -- podman run --rm --network=none --device nvidia.com/gpu=0 image && { ! has_cdi || sees 0 mknod -- docker run --rm --net=none --device nvidia.com/gpu=0 image; }
}
after() {
  title "after a boot"
  check "boot ends" until_true 120 systemctl is-active -q multi-user.target docker.service containerd.service
  check "doctor is content" until_true 3 is_content
  check "containers start" containers_start
}

# What doctor says first after break_NAME; the printed repairs are run, or the command that does what their words say.
# doctor is asked again while it has something to say: what is repaired may have hidden something.
try() { # NAME FIRST [COMMAND]
  local name=$1 first=$2 by_hand=${3:-} again line
  check "$name" "break_$name"
  says_first() { doctor=$(nvidia-ctk doctor); head -n 1 <<< "$doctor" | grep -F -- "$first" || { echo "$doctor"; return 1; }; }
  check "$name: $first" until_true 2 says_first
  for again in 1 2 3; do
    nvidia-ctk doctor > /tmp/doctor
    ! grep -q '^0 wrong, 0 advice' /tmp/doctor || break
    sed -n 's/^ *repair: //p' /tmp/doctor > /tmp/repairs
    [ $again != 1 ] || [ -z "$by_hand" ] || echo "$by_hand" > /tmp/repairs
    while read -r -u 5 line; do check "  $line" eval "$line"; done 5< /tmp/repairs
  done
  check "  leaves nothing to report" until_true 3 is_content
}

# ---- the toolkit's settings ------------------------------------------------------------------------------------------

setting() { rm -rf $config; mkdir -p ${config%/*}; printf '%s\n' "$@" > $config; }
break_user() { setting '[nvidia-container-cli]' 'user = "nobdy:vdieo"'; }
break_ldcache() { setting '[nvidia-container-cli]' 'ldcache = "/nonexistent"'; }
break_hook_path() { setting '[nvidia-container-runtime]' 'mode = "legacy"' '[nvidia-container-runtime-hook]' 'path = "/opt/hook"'; }
break_variables() { setting 'accept-nvidia-visible-devices-envvar-when-unprivileged = false'; }
break_root() { setting '[nvidia-container-cli]' 'root = "/run/nvidia/driver"' '[nvidia-container-runtime]' 'experimental = true' 'discover-mode = "legacy"'; }
break_cli_path() { setting '[nvidia-container-cli]' 'path = "/opt/nvidia-container-cli"'; }
break_ldconfig() { setting '[nvidia-container-cli]' 'ldconfig = "@/opt/ldconfig"'; }
break_directory() { rm -rf $config; mkdir -p $config; }

# ---- programs --------------------------------------------------------------------------------------------------------

old_program() { printf '#!/bin/sh\nexit 1\n' > "/usr/local/sbin/$1" && chmod 755 "/usr/local/sbin/$1"; }
break_old_cli() { old_program nvidia-container-cli; }
break_old_hook() { old_program nvidia-container-runtime-hook; }
break_hook_link() { mv /usr/bin/nvidia-cdi-hook $saved/ && ln -s /no/such /usr/bin/nvidia-cdi-hook; }
break_query() { mv /usr/bin/nvc-query $saved/; }

# ---- engines ---------------------------------------------------------------------------------------------------------

break_docker_directories() { sed -i 's,^{,{"cdi-spec-dirs": ["/opt/cdi"]\, ,' $daemon && mkdir -p /opt/cdi && systemctl restart docker; }
break_docker_host() { export DOCKER_HOST=tcp://127.0.0.1:1; }
# Another file, without the runtime.
break_config_file() {
  echo '{"iptables": false, "ip6tables": false, "bridge": "none", "storage-driver": "vfs", "features": {"cdi": true}}' > /etc/docker/other.json
  printf '[Service]\nExecStart=\nExecStart=/usr/sbin/dockerd -H unix:///run/docker.sock --config-file=/etc/docker/other.json\n' \
    > /etc/systemd/system/docker.service.d/zz-file.conf
  systemctl daemon-reload && systemctl restart docker
}
break_private_devices() {
  printf '[Service]\nPrivateDevices=yes\n' > /etc/systemd/system/docker.service.d/private.conf && systemctl daemon-reload && systemctl restart docker
}
break_cri() { sed -i '1i disabled_plugins = ["io.containerd.grpc.v1.cri"]' /etc/containerd/config.toml && systemctl restart containerd; }
break_containerd_file() { cp /etc/containerd/config.toml $saved/ && sed -i '/^imports/d' /etc/containerd/config.toml && systemctl restart containerd; }

# ---- specifications --------------------------------------------------------------------------------------------------

break_empty() { : > $spec; }
break_empty_other() { mkdir -p /etc/cdi && : > /etc/cdi/x.yaml; }
break_copied() { cp $spec ${spec%/*}/copy.yaml; }
break_hidden() { mkdir -p /etc/cdi && sed 's/570.124.06/550.1.1/g' $spec > /etc/cdi/nvidia.yaml; }
break_refresh() {
  mkdir -p ${environment%/*} && echo NVIDIA_CTK_CDI_GENERATE_MODE=nvlm > $environment
  ! systemctl restart $unit
}
break_disabled() { systemctl disable --now $unit nvidia-cdi-refresh.path nvidia-cdi-verify.timer; }

# ---- the driver ------------------------------------------------------------------------------------------------------

break_nodes() { mv /dev/nvidia0 /dev/x && mv /dev/nvidia1 /dev/nvidia0 && mv /dev/x /dev/nvidia1; }
break_left_over() { : > $libraries/libcuda.so.470.1.1; }
break_mismatch() { sed -i 's/570.124.06/565.1.1/' /proc/driver/nvidia/version; }
break_no_driver() { mount -t tmpfs tmpfs /proc/driver; }
break_no_ldconfig() { mv "$(readlink -f /sbin/ldconfig)" $saved/ldconfig; }
break_group() { chmod 660 /dev/nvidia[01] /dev/nvidiactl && chgrp video /dev/nvidia[01] /dev/nvidiactl; }

rounds() { sed -n 's/^round_\([a-z0-9]*\)() {.*/\1/p' "$0"; }
round_1() {
  try user 'nvidia-container-cli.user is "nobdy:vdieo"'
  ! has_cdi || try docker_directories 'docker reads specifications in /opt/cdi only' \
    "sed -i 's,\"/opt/cdi\",&\\, \"/var/run/cdi\",' $daemon && systemctl restart docker"
  try refresh "$unit fails" "rm $environment && systemctl restart $unit"
  try empty_other '/etc/cdi/x.yaml: the file has no content'
  try old_cli 'nvidia-container-cli is installed twice' 'rm /usr/local/sbin/nvidia-container-cli'
}
round_2() {
  try ldcache 'nvidia-container-cli.ldcache is /nonexistent'
  try private_devices 'docker.service has PrivateDevices=yes'
  try disabled "$unit is disabled"
  try copied 'so engines ignore them' "rm ${spec%/*}/copy.yaml"
  try old_hook 'nvidia-container-runtime-hook is installed twice' 'rm /usr/local/sbin/nvidia-container-runtime-hook'
}
round_3() {
  try hook_path '/opt/hook is missing'
  try docker_host 'DOCKER_HOST is tcp://127.0.0.1:1' 'unset DOCKER_HOST'
  try config_file 'dockerd, which reads /etc/docker/other.json'
  try empty 'the file has no content'
  try containerd_file 'does not import'
}
round_4() {
  try variables 'unprivileged containers request no GPU by variables'
  try hook_link 'nvidia-cdi-hook is not in PATH' "mv $saved/nvidia-cdi-hook /usr/bin/"
  try hidden 'which engines prefer'
  try cri 'disables the CRI plugin' "sed -i /disabled_plugins/d /etc/containerd/config.toml && systemctl restart containerd"
  try nodes '/dev/nvidia0 is device 195:1'
}
round_5() {
  try directory 'config.toml: is a directory'
  try query 'nvc-query' "mv $saved/nvc-query /usr/bin/"
  title "no breakdown"
  break_left_over
  check "a library that was left over" is_content
  break_no_ldconfig
  check "no ldconfig" is_content
  check "containers start" eval 'containers_start || { journalctl -n 20 --no-pager | grep -i ldconfig; false; }'
  mv $saved/ldconfig /sbin/ldconfig
}
round_6() {
  try root 'the driver is in /' \
    'nvidia-ctk config --set nvidia-container-cli.root=/ --in-place && sed -i "/experimental/d; /discover-mode/d" /etc/nvidia-container-runtime/config.toml'
  try no_driver 'the module nvidia is not loaded' 'umount /proc/driver'
  title "as alice"
  break_group
  systemctl start $unit # the specification has the nodes' modes
  as_alice() { setpriv --reuid=alice --regid=alice --init-groups env HOME=/home/alice USER=alice nvidia-ctk doctor; }
  check "group: you may not open" says 'WRONG    device nodes: you may not open /dev/nvidiactl, which is for root and the group video' as_alice
  check "  usermod" usermod --append --groups=video alice
  check "  leaves nothing wrong" as_alice
}
round_7() {
  try cli_path '/opt/nvidia-container-cli is missing'
  break_mismatch
  check "libraries of another driver" says 'the module is of driver 565.1.1, the libraries are of 570.124.06' nvidia-ctk doctor
  check "the repair is a boot" grep -q 'repair: reboot' /tmp/said
}
round_8() { try ldconfig '/opt/ldconfig is missing'; }

case $1 in
  round) title "round $2"; "round_$2" ;;
  *) "$@" || exit 1 ;;
esac
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
