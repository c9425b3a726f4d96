# Makes containers in each way that this project knows; in each, the GPU that was asked for computes, and no other node
# opens. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# Creates a container root: Debian's layout, the packing machine's C library, busybox, and the check program.
make_root() { # DIRECTORY
  rm -rf "$1"
  mkdir -p "$1/usr/bin" "$1/usr/sbin" "$1/usr/lib/$triplet" "$1/usr/lib64" "$1/etc" "$1/proc" "$1/sys" "$1/dev" "$1/tmp" \
    "$1/run" "$1/mnt"
  ln -s usr/bin "$1/bin"
  ln -s usr/sbin "$1/sbin"
  ln -s usr/lib "$1/lib"
  ln -s usr/lib64 "$1/lib64"
  cp "$work"/root/lib/* "$1/usr/lib/$triplet/"
  mkdir -p "$1${loader%/*}"
  mv "$1/usr/lib/$triplet/${loader##*/}" "$1$loader"
  cp "$work/root/bin/check" "$work/bin/busybox" "$1/usr/bin/"
  ln -s busybox "$1/usr/bin/sh"
  cp "$work/root/bin/ldconfig" "$1/usr/sbin/"
  echo 12.0 > "$1/etc/debian_version"
  echo "/usr/lib/$triplet" > "$1/etc/ld.so.conf"
  echo 'root:x:0:0::/:/bin/sh' > "$1/etc/passwd"
  chroot "$1" /sbin/ldconfig
  cat > "$1/job" <<END_OF_FILE
check compute $([ ! "$simulated" ] || echo --no-kernel)
echo "status \$?"
check open /tmp $(list_nodes | tr '\n' ' ')
END_OF_FILE
}

# Judges what a container printed. Nodes that every container with a GPU gets are none of the GPU's own.
judge() { # WAY FILE COUNT NODES...: so many GPUs compute, these nodes open, and none but these and common ones
  way=$1 file=$2 count=$3
  shift 3
  cp "$file" "$work/seen.container-$(echo "$way" | tr -c 'a-zA-Z0-9\n' -)"
  computed=$(grep -c '^computed ' "$file")
  if [ "$count" = 0 ] || [ "$cuda_works" ]; then
    if [ "$computed" = "$count" ]; then
      pass "$way: $computed GPUs computed"
    else
      fail "$way: $computed GPUs computed, and $count were to"
      grep -v ' there=' "$file" > "$work/short"
      details "$work/short" 20
    fi
  else
    skip "$way: computing, which does not work outside either"
  fi
  common=' /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset /dev/dxg '
  [ "$count" != 0 ] || common=' '
  for node; do
    grep -q "^$node there=yes" "$file" || fail "$way: $node does not open, and was given: $(grep "^$node " "$file")"
  done
  wrong=$(awk -v may="$common$* " '/ there=/ { if (!index(may, " " $1 " ") && ($2 == "there=yes" || $3 == "made=yes")) print }' \
    "$file")
  tried=$(grep -c ' there=' "$file")
  if [ "$wrong" ]; then
    fail "$way: nodes open that were not given: $(echo "$wrong" | head -n 5 | tr '\n' ';')"
  elif [ "$tried" = 0 ]; then
    fail "$way: it printed nothing about nodes"
    details "$file"
    details "$work/err"
  else
    pass "$way: of $tried nodes only the given ones open"
  fi
  # A library that CUDA loads on the machine, and not in the container, may be missing there.
  if [ "$count" != 0 ] && [ -s "$work/loaded-here" ]; then
    sed -n 's/^loaded //p' "$file" | sed 's|.*/||' | sort -u > "$work/loaded-there"
    lost=$(grep -vxF -f "$work/loaded-there" "$work/loaded-here" | tr '\n' ' ')
    [ ! "$lost" ] || note "$way: CUDA loads these on the machine, and not here: $lost"
  fi
}

# Runs in a new mount namespace, as the container's first process.
by_hand_inside() { # ROOT DEVICE [CAPABILITIES]
  capabilities=${3:---compute --utility}
  mount --bind "$1" "$1" && cd "$1" && mount --rbind /proc proc && mount -t tmpfs -o mode=755 tmpfs dev || exit 99
  for node in null zero full random urandom; do
    [ ! -e /dev/$node ] || { : > dev/$node && mount --bind /dev/$node dev/$node; } || exit 99
  done
  mount --rbind /sys sys || exit 99
  if [ "$2" ]; then
    "$work/bin/nvidia-container-cli" configure "--pid=$$" --no-cgroups $capabilities "--device=$2" "$1" || exit 98
  fi
  # From here on, programs come from the new root.
  PATH=/usr/bin:/usr/sbin
  export PATH
  "$busybox" pivot_root . mnt && usr/bin/busybox umount -l mnt && exec usr/bin/busybox chroot . /bin/sh /job
  exit 99
}

by_hand() { # DEVICE COUNT NODES...
  device=$1
  shift
  time_left 60 || { skip "container by hand, ${device:-no request}: no time left"; return; }
  make_root "$work/c/hand"
  limit 90 "$busybox" unshare -m --propagation private "$busybox" sh "$work/containers.sh" --inside "$work/c/hand" "$device"
  if [ $status = 99 ]; then
    skip "container by hand, ${device:-no request}: this machine does not let us make one: $(tail -n 1 "$work/err")"
  elif [ $status = 98 ] || [ $status = 143 ] || [ $status = 124 ]; then
    fail "container by hand, $device: configure"
    details "$work/err"
  else
    # Nothing filters devices here, so that a node of the container's own says nothing.
    sed -i 's/ made=.*/ made=-/' "$work/out"
    cp "$work/out" "$work/hand.out"
    judge "by hand, ${device:-no request}" "$work/hand.out" "$@"
  fi
}

capabilities() {
  printf '"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_KILL"'
  # As with docker: what keeps a node that the container makes closed is the device filter.
  [ ! "$mknod" ] || printf ', "CAP_MKNOD"'
}

bundle() { # ENVIRONMENT-ENTRY HOOKS [JOB [MOUNTS]]
  make_root "$work/c/rootfs"
  [ $# -lt 3 ] || printf '%s\n' "$3" > "$work/c/rootfs/job"
  proc='{"destination": "/proc", "type": "proc", "source": "proc"}' pid='{"type": "pid"}, '
  if [ "$simulated" ]; then
    # With a real driver each procfs shows it.
    proc='{"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]}' pid=
  fi
  cat > "$work/c/config.json" <<END_OF_FILE
{"ociVersion": "1.0.2",
 "process": {"terminal": false, "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "/job"], "cwd": "/",
  "env": ["PATH=/usr/bin:/usr/sbin"$1],
  "capabilities": {"bounding": [$(capabilities)], "effective": [$(capabilities)], "permitted": [$(capabilities)]}},
 "root": {"path": "rootfs", "readonly": false},
 "mounts": [$proc,
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
  {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]}${4:-}]$2,
 "linux": {"namespaces": [$pid{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
  "resources": {"devices": [{"allow": false, "access": "rwm"}]}}}
END_OF_FILE
}

# Set when a container of runc ran: what needs one asks for it. A PATH for our programs, if it is not this one.
containers_work='' search=''

# Runs the bundle; the output is in $work/out.
containers=0
run_bundle() { # PROGRAM
  containers=$((containers + 1))
  name=nvc-test-gpu-$$-$containers
  cd "$work/c" || return
  before=$(ticks)
  limit 90 env "PATH=${search:-$PATH}" "$1" --root "$work/state" run "$name"
  took=$((($(ticks) - before) * 10))
  cd "$work" || return
  [ $status = 0 ] || "$work/bin/runc" --root "$work/state" delete --force "$name" 2>/dev/null
  return $status
}

configure_runtime() { # MODE [RUNTIME]
  ldconfig_line=
  [ ! "$own_ldconfig" ] || ldconfig_line="ldconfig = \"@$own_ldconfig\""
  cat > "$work/config.toml" <<END_OF_FILE
[nvidia-container-cli]
path = "$work/bin/nvidia-container-cli"
$ldconfig_line
[nvidia-container-runtime]
mode = "$1"
modes.cdi.spec-dirs = ["$work/cdi"]
runtimes = ["${2:-$work/bin/runc}"]
[nvidia-container-runtime-hook]
path = "$work/bin/nvidia-container-runtime-hook"
END_OF_FILE
  export NVIDIA_CTK_CONFIG_FILE_PATH="$work/config.toml"
}

run_and_judge() { # WAY PROGRAM COUNT NODES...
  way=$1 program=$2
  shift 2
  time_left 60 || { skip "$way: no time left"; return; }
  if run_bundle "$program"; then
    cp "$work/out" "$work/bundle.out"
    judge "$way ($took ms)" "$work/bundle.out" "$@"
  else
    fail "$way: exit code $status"
    details "$work/out"
    details "$work/err"
  fi
}

by_runtime() { # MODE DEVICE COUNT NODES...
  mode=$1 device=$2
  shift 2
  if [ "$mode" = auto ] && [ "$device" ] && [ "$own_ldconfig" ]; then
    skip "runtime in mode auto, $device: this machine has no /sbin/ldconfig, which that mode's hook needs"
    return
  fi
  entry=
  [ ! "$device" ] || entry=", \"NVIDIA_VISIBLE_DEVICES=$device\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\""
  bundle "$entry" ''
  configure_runtime "$mode"
  run_and_judge "runtime in mode $mode, ${device:-no request}" "$work/bin/nvidia-container-runtime" "$@"
}

by_hook() { # DEVICE COUNT NODES...
  device=$1
  shift
  entry=", \"NVIDIA_VISIBLE_DEVICES=$device\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\""
  bundle "$entry" ", \"hooks\": {\"prestart\": [{\"path\": \"$work/bin/nvidia-container-runtime-hook\",
    \"args\": [\"nvidia-container-runtime-hook\", \"-config\", \"$work/config.toml\", \"prestart\"]}]}"
  configure_runtime legacy
  run_and_judge "hook under runc, $device" "$work/bin/runc" "$@"
}

test_containers() {
  title "Containers"
  first=
  if [ "$why" ]; then
    skip "all containers: $why"
    return
  fi
  # GPU 0, or the first that is not in MIG mode; a MIG device; the last GPU.
  migs=" $(mig_gpus)"
  last=''
  while IFS=, read -r index minor rest; do
    case $migs in *" $index "*) continue ;; esac
    [ "$first" ] || first=$index first_node=/dev/nvidia$minor
    last=$index last_node=/dev/nvidia$minor
  done < "$work/gpus"
  # WSL and integrated GPUs have other nodes than their minor number's.
  [ ! "$first" ] || [ -e "$first_node" ] || first_node=/dev/nvidiactl
  [ ! "$first" ] || [ -e "$last_node" ] || last_node=$first_node
  [ -e "${first_node:-/dev/nvidiactl}" ] || first_node=/dev/dxg last_node=/dev/dxg
  mig=$(awk '/^GPU / { gpu = $2; sub(/:/, "", gpu) }
    /^ +MIG / { sub(/.*Device +/, ""); sub(/:.*/, ""); print gpu ":" $0; exit }' "$work/seen.smi-L" 2>/dev/null)
  [ "$first" ] || note "every GPU is in MIG mode"
  if [ "$mig" ]; then
    mig_node=/dev/nvidia$(awk -F, -v gpu="${mig%:*}" '$1 == gpu { print $2 }' "$work/gpus")
    # Its GPU instance and its compute instance, which only the driver knows: of all nodes there, two open.
    mig_caps=$(ls /dev/nvidia-caps 2>/dev/null | grep -c .)
  fi

  mkdir -p "$work/c"
  by_hand '' 0
  [ ! "$first" ] || by_hand "$first" 1 "$first_node"

  # Without anything of ours: can this machine run a container of runc, and does it filter devices?
  bundle '' ''
  if ! run_bundle "$work/bin/runc"; then
    skip "containers of runc, which cannot run one here: $(tail -n 1 "$work/err")"
    return
  fi
  if grep -q ' made=yes' "$work/out"; then
    skip "containers of runc: nothing filters devices here: $(grep ' made=yes' "$work/out" | head -n 1)"
    return
  fi
  containers_work=yes
  by_runtime auto '' 0
  if [ "$first" ]; then
    by_runtime auto "$first" 1 "$first_node"
    by_runtime legacy "$first" 1 "$first_node"
    [ ! -s "$work/cdi/nvidia.yaml" ] || by_runtime cdi "nvidia.com/gpu=$first" 1 "$first_node"
    by_hook "$first" 1 "$first_node"
    if [ "$last" != "$first" ]; then
      by_runtime auto "$last" 1 "$last_node"
    elif [ "$gpus" = 1 ]; then
      note "this machine has one GPU: that others stay closed is shown by the container without a request alone"
    fi
  fi
  if [ "$mig" ]; then
    test_mig auto "$mig"
    [ ! -s "$work/cdi/nvidia.yaml" ] || test_mig cdi "nvidia.com/gpu=$mig"
  else
    skip "MIG devices: there is none"
  fi
}

# Gives a MIG device. Which nodes are its instances' is the driver's knowledge: exactly two of /dev/nvidia-caps open.
test_mig() { # MODE DEVICE
  [ "$1" != auto ] || [ ! "$own_ldconfig" ] || { skip "runtime in mode auto, $2: no /sbin/ldconfig"; return; }
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$2\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\"" ''
  configure_runtime "$1"
  if ! run_bundle "$work/bin/nvidia-container-runtime"; then
    fail "runtime in mode $1, MIG device $2: exit code $status"
    details "$work/err"
    return
  fi
  sed '/^.dev.nvidia-caps./d' "$work/out" > "$work/mig.out"
  grep '^/dev/nvidia-caps/' "$work/out" | grep -c -e there=yes -e made=yes > "$work/mig.open"
  judge "runtime in mode $1, MIG device $2" "$work/mig.out" 1 "$mig_node"
  [ "$mig_caps" = 0 ] || same "nodes of MIG instances that open for $2" "$(cat "$work/mig.open")" 2
}

if [ "${1:-}" = --inside ]; then
  shift
  by_hand_inside "$@"
fi
