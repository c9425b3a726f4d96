# Looks at the machine and its driver, and compares what our programs say with nvidia-smi and the driver's files.
# Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

cli=$work/bin/nvidia-container-cli
ctk=$work/bin/nvidia-ctk
gpus='' version='' smi=''

# A program that runs the check program with the packing machine's loader and C library, so that it works with any here.
# The driver's library comes from this machine's loader cache, or from the places where some machines have it outside.
check=$work/check
cat > "$check" <<END_OF_FILE
#!$work/bin/busybox sh
exec $work/root/lib/${loader##*/} --library-path '$library_path' $work/root/bin/check "\$@"
END_OF_FILE
chmod 755 "$check"

# Prints the first lines: what this machine is, and what cannot be tested.
look_at_machine() {
  system=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null)
  say "machine: $arch, Linux $(uname -r), ${system:-no /etc/os-release}, $(nproc) CPUs"
  # The kernel of gVisor calls itself so in its log, and nowhere else.
  sandbox=
  ! dmesg 2>/dev/null | grep -qi gvisor || sandbox=' (gVisor)'
  version=$(awk '/^NVRM version/ { for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+\.[0-9.]+$/) { print $i; exit } }' \
    /proc/driver/nvidia/version 2>/dev/null)
  smi=$(PATH=$machine_path; command -v nvidia-smi)
  # Right after boot the driver may know GPUs whose nodes do not exist yet. WSL and integrated GPUs have others.
  gpus=$(find /proc/driver/nvidia/gpus -mindepth 1 -maxdepth 1 2>/dev/null | grep -c :)
  [ "$gpus" != 0 ] || gpus=$(list_nodes | grep -c ':/dev/nvidia[0-9]*$')
  [ "$gpus" != 0 ] || gpus=$(list_nodes | grep -c -e ':/dev/dxg$' -e ':/dev/nvhost-gpu$' -e ':/dev/nvmap$')
  if [ "$simulated" ]; then
    say "driver: SIMULATED, ${version:-no version}; no kernel is launched"
  else
    say "driver: ${version:-none in /proc/driver/nvidia/version}; $gpus GPUs; ${smi:-no nvidia-smi}"
  fi
  if [ "$gpus" = 0 ]; then
    gpus=
    if grep -qs '^0x10de$' /sys/bus/pci/devices/*/vendor; then
      say "NO DRIVER: a PCI device of NVIDIA is here, but no driver is loaded. Only the start of our programs is tested."
    else
      say "NO GPU: the driver shows none, in /proc/driver/nvidia/gpus or /dev. Only the start of our programs is tested."
    fi
    skip "everything that needs a GPU"
  elif [ "$why" ]; then
    say "NO RIGHTS: $why$sandbox. No container is made; run it as root, or in a container with --privileged."
  else
    say "rights: root, may mount"
  fi
  bounding=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
  # Bit 27 is CAP_MKNOD.
  mknod=
  [ $((0x${bounding:-0} >> 27 & 1)) = 0 ] || mknod=yes
  say "capabilities: $bounding; cgroups: $(awk '$3 ~ /^cgroup/ { print $3 }' /proc/mounts | sort | uniq -c | tr -s ' \n' ' ')"
}

# Prints MAJOR:MINOR:PATH for each node that is the driver's or displays'.
list_nodes() {
  find /dev \( -name 'nvidia*' -o -name 'channel*' -o -name 'dxg' -o -name 'nvhost*' -o -name nvmap -o -name gdrdrv \
    -o -path '/dev/dri/*' \) -type c 2>/dev/null | sort | head -n 300 | while read -r node; do
    # shellcheck disable=SC2046 # two words
    set -- $(stat -c '%t %T' "$node")
    echo "$((0x$1)):$((0x$2)):$node"
  done
}

# The very first call that wakes the driver. It is cold only if neither a persistence daemon nor a program holds a GPU.
time_cold() {
  title "Our programs start"
  configure_runtime auto
  # The runtime asks runc, which loads its libraries from /tmp: only from our own.
  runtime=nvidia-container-runtime
  [ ! "$why" ] || runtime=
  for program in nvidia-container-cli $runtime nvidia-ctk nvidia-cdi-hook; do
    if limit 20 "$work/bin/$program" --version; then
      pass "$program --version: $(head -n 1 "$work/out")"
    else
      fail "$program --version: exit code $status"
      details "$work/err"
    fi
  done
  [ "$gpus" ] || return 0
  if ! list_nodes | grep -q -e ':/dev/nvidiactl$' -e ':/dev/dxg$' -e ':/dev/nvhost'; then
    note "nobody has created the driver's nodes yet: nvidia-container-cli --load-kmods does"
    limit 90 "$cli" --load-kmods info || details "$work/err"
  fi
  limit 90 "$check" time 1 "$cli" info
  cold=$(sed -n 's/^first=\([0-9.]*\) .*/\1/p' "$work/out")
  if ! grep -q 'exit=0$' "$work/out"; then
    limit 60 "$cli" info
    note "the first call of nvidia-container-cli info failed, after $cold ms; from here on NVML may take 80 s"
    details "$work/err"
    export NVC_DRIVER_TIMEOUT=80
  fi
  limit 60 "$check" time 5 "$cli" info
  note "nvidia-container-cli info: $cold ms at first (cold, unless persistence mode is on or a program holds a GPU)," \
    "then $(sed -n 's/.* best=\([0-9.]*\) .*/\1/p' "$work/out") ms"
}

# Asks nvidia-smi; leaves $work/seen.smi-q and a table GPU|BUS|UUID|MINOR|NAME|MIG|PERSISTENCE.
ask_smi() {
  : > "$work/smi"
  [ "$smi" ] || return 1
  limit 60 env "PATH=$machine_path" "$smi" -q
  cp "$work/out" "$work/seen.smi-q"
  awk -F ' +: +' '
    function flush() { if (bus) print n++ "|" bus "|" uuid "|" minor "|" name "|" mig "|" persistence }
    /^GPU [0-9A-Fa-f]+:/ { flush(); sub(/^GPU /, ""); bus = tolower($0); uuid = minor = name = mig = persistence = part = "" }
    /^    [A-Z].*$/ && !/ : / { part = $0 }
    / Product Name +:/ { name = $2 }
    / GPU UUID +:/ { uuid = $2 }
    / Minor Number +:/ { minor = $2 }
    / Persistence Mode +:/ { persistence = $2 }
    part ~ /MIG Mode/ && / Current +:/ { mig = $2; part = "" }
    END { flush() }' "$work/out" > "$work/smi"
  limit 60 env "PATH=$machine_path" "$smi" -L
  cp "$work/out" "$work/seen.smi-L"
}

# Compares `info` with nvidia-smi and with procfs, both of which are not ours.
compare_info() {
  title "nvidia-container-cli info"
  if ! limit 60 "$cli" info --csv; then
    fail "info: exit code $status"
    details "$work/err"
    return
  fi
  cp "$work/out" "$work/seen.info"
  ask_smi
  learn_to_hide
  sed -n 's/^\([0-9.]*\),\([0-9.]*\)$/\1 \2/p' "$work/seen.info" | head -n 1 > "$work/versions"
  read -r our_version our_cuda < "$work/versions"
  sed '1,/^Device Index/d' "$work/seen.info" > "$work/gpus"
  details "$work/seen.info" 40
  [ ! "$version" ] || same "driver version, and /proc/driver/nvidia/version" "$our_version" "$version"
  for directory in /proc/driver/nvidia/gpus/*/; do
    [ -e "$directory/information" ] || continue
    bus=${directory%/}
    bus=${bus##*/}
    minor=$(sed -n 's/^Device Minor:[[:space:]]*//p' "$directory/information")
    uuid=$(sed -n 's/^GPU UUID:[[:space:]]*//p' "$directory/information")
    ours=$(awk -F, -v bus="$bus" 'tolower($6) ~ tolower(bus) "$" { print $2, $5 }' "$work/gpus")
    case $uuid in
      *'?'*) same "minor number of $bus, and procfs, which hides its UUID" "${ours%% *}" "$minor" ;;
      *) same "minor number and UUID of $bus, and procfs" "$ours" "$minor $uuid" ;;
    esac
  done
  if [ -s "$work/smi" ]; then
    same "CUDA version, and nvidia-smi" "$our_cuda" "$(sed -n 's/^CUDA Version *: *//p' "$work/seen.smi-q")"
    same "index, address, UUID, minor number and name of all GPUs, and nvidia-smi" \
      "$(awk -F, '{ print $1 "|" tolower($6) "|" $5 "|" $2 "|" $3 }' "$work/gpus")" "$(cut -d '|' -f 1-5 "$work/smi")"
    note "persistence mode: $(cut -d '|' -f 7 "$work/smi" | sort -u | tr '\n' ' ')"
  elif [ -s "$work/seen.smi-L" ]; then
    same "UUIDs of all GPUs, and nvidia-smi -L" "$(cut -d, -f5 "$work/gpus")" \
      "$(sed -n 's/^GPU [0-9]*: .*(UUID: \([^)]*\)).*/\1/p' "$work/seen.smi-L")"
    skip "names and minor numbers against nvidia-smi -q: it printed none"
  else
    skip "comparison with nvidia-smi: there is none that works"
  fi
}

exist() { # WHAT MISSING-FILES
  if [ "$2" ]; then
    fail "$1: these do not exist: $(echo "$2" | tr '\n' ' ')"
  else
    pass "$1 exists"
  fi
}

# Compares `list` with the driver's files. The catalogue may name less than a driver has: that is worth knowing, and no
# failure.
compare_list() {
  title "nvidia-container-cli list"
  if ! limit 60 "$cli" list; then
    fail "list: exit code $status"
    details "$work/err"
    return
  fi
  sort "$work/out" > "$work/list"
  [ ! -s "$work/err" ] || details "$work/err" 20
  gone=$(while read -r file; do [ -e "$file" ] || echo "$file"; done < "$work/list")
  exist "everything it names" "$gone"
  grep -E '/lib[^/]*\.so\.[0-9.]+$' "$work/list" > "$work/libraries"
  if grep -q '/libcuda\.so\.' "$work/libraries" && grep -q '/libnvidia-ml\.so\.' "$work/libraries"; then
    pass "it names libcuda and libnvidia-ml, and $(wc -l < "$work/libraries") libraries"
  else
    fail "it names not both libcuda and libnvidia-ml"
  fi
  for directory in $(sed 's|/[^/]*$||' "$work/libraries" | sort -u); do
    find "$directory" -maxdepth 2 -name "lib*.so.${our_version:-none}"
  done | sort -u > "$work/files"
  more=$(grep -vxF -f "$work/libraries" "$work/files" | sed 's|.*/||' | sort -u | tr '\n' ' ')
  [ ! "$more" ] || note "libraries of this version that no container gets: $more"
}

# Compares the specification with the machine: names, nodes and files.
compare_specification() {
  title "nvidia-ctk cdi generate"
  mkdir -p "$work/cdi"
  if ! limit 90 "$ctk" cdi generate --format=yaml "--output=$work/cdi/nvidia.yaml" \
    "--nvidia-cdi-hook-path=$work/bin/nvidia-cdi-hook" $(ldconfig_option); then
    fail "cdi generate: exit code $status"
    details "$work/err"
    return
  fi
  grep -iE 'warn|error' "$work/err" > "$work/warnings"
  [ ! -s "$work/warnings" ] || details "$work/warnings" 20
  spec=$work/cdi/nvidia.yaml
  cp "$spec" "$work/seen.cdi"
  learn_to_hide
  # Lines `DEVICE NODE`, and the files.
  awk '{ gsub(/"/, "") } /^devices:/ { in_devices = 1 } /^[a-z]/ && !/^devices:/ { in_devices = 0 }
    in_devices && /^ *(- )?name: / { name = $NF }
    in_devices && /^ *(- )?path: \/dev/ { print name, $NF }' "$spec" > "$work/device-nodes"
  sed -n 's/^ *\(- \)\{0,1\}hostPath: *"\{0,1\}\([^"]*\)"\{0,1\}$/\2/p' "$spec" | sort -u > "$work/host-paths"
  gone=$(while read -r file; do [ -e "$file" ] || echo "$file"; done < "$work/host-paths")
  exist "each of its $(wc -l < "$work/host-paths") files" "$gone"
  awk -F, '{ print $1, $2 }' "$work/gpus" | while read -r index minor; do
    grep -qx "$index /dev/nvidia$minor" "$work/device-nodes" || echo "$index"
  done > "$work/without"
  migs=$(mig_gpus)
  for index in $(cat "$work/without"); do
    # A GPU in MIG mode has no device of its own, its MIG devices have.
    case " $migs " in *" $index "*) ;; *) fail "device $index has no node of that GPU" ;; esac
  done
  pass "names: $(awk '{ gsub(/"/, "") } /^ *(- )?name: / { print $NF }' "$spec" | grep -vE '^(GPU|MIG)-' | sort -u | tr '\n' ' ')"
  if ! limit 60 "$ctk" cdi verify "--spec-dir=$work/cdi"; then
    note "cdi verify: exit code $status"
    details "$work/err"
  fi
}

# A bare root has no ldconfig; then the packed one, a static program, takes its place.
own_ldconfig=
[ -e /sbin/ldconfig ] || [ -e /sbin/ldconfig.real ] || own_ldconfig=$work/root/bin/ldconfig
ldconfig_option() { [ ! "$own_ldconfig" ] || echo "--ldconfig-path=$own_ldconfig"; }

# Prints the indices of the GPUs in MIG mode.
mig_gpus() {
  if [ -s "$work/smi" ]; then
    awk -F '|' '$6 ~ /Enabled/ { printf "%s ", $1 }' "$work/smi"
  elif [ -s "$work/seen.smi-L" ]; then
    awk '/^GPU / { gpu = $2; sub(/:/, "", gpu) } /^ +MIG / && !seen[gpu]++ { printf "%s ", gpu }' "$work/seen.smi-L"
  else
    # Only the specification says it: as GPU:INSTANCE.
    sed -n 's/^\([0-9]*\):[0-9]* .*/\1/p' "$work/device-nodes" 2>/dev/null | sort -u | tr '\n' ' '
  fi
}

# Computes on the machine itself: what does not work here cannot work in a container.
compute_here() {
  title "CUDA's driver API on the machine"
  cuda_works=
  limit 120 "$check" compute $([ ! "$simulated" ] || echo --no-kernel)
  cp "$work/out" "$work/seen.cuda"
  sed -n 's/^loaded //p' "$work/out" | sed 's|.*/||' | sort -u > "$work/loaded-here"
  details "$work/out" 40
  if [ $status = 0 ]; then
    cuda_works=yes
    pass "$(grep -c ^computed "$work/out") GPUs computed"
  else
    skip "computing: it does not work on the machine itself"
  fi
}

# Prints how long each program takes, first and at best, in milliseconds.
time_programs() {
  title "Times in milliseconds: first of five, best"
  timed() { # NAME COMMAND...
    time_left 60 || { skip "time of $1: no time left"; return; }
    name=$1
    shift
    limit 60 "$check" time 5 "$@"
    say "  $name: $(sed 's/first=//; s/ best=/, /; s/ exit=0//' "$work/out")"
  }
  timed "true" "$work/tools/true"
  timed "nvidia-container-cli info" "$cli" info
  timed "nvidia-container-cli list" "$cli" list
  timed "nvidia-container-cli list --device=0" "$cli" list --device=0
  timed "nvidia-container-cli list --device=all" "$cli" list --device=all
  timed "nvidia-ctk cdi generate" "$ctk" --quiet cdi generate "--output=$work/cdi-again.yaml" \
    "--nvidia-cdi-hook-path=$work/bin/nvidia-cdi-hook" $(ldconfig_option)
  timed "nvidia-ctk cdi list" "$ctk" cdi list "--spec-dir=$work/cdi"
  [ ! "$smi" ] || timed "nvidia-smi -L" "$smi" -L
}
