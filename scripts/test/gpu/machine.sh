# Writes what was seen as a machine file, which the tests' simulated drivers read, and the facts that such a file has no
# words for as comments. UUIDs and serial numbers are invented (result.sh). Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# NVML's numbers of brands, by the names in `info`.
brand_number() {
  n=0
  for brand in Unknown Quadro Tesla NVS GRID GeForce TITAN VApps VPC VCS VWS CloudGaming QuadroRTX NvidiaRTX Nvidia \
    GeForceRTX TitanRTX; do
    [ "$brand" != "$1" ] || { echo $n; return; }
    n=$((n + 1))
  done
  echo 0
}

# Prints the machine file: a profile of nvc-simdriver.
machine_file() {
  echo "# $(cut -d, -f3 "$work/gpus" | sort | uniq -c | tr -s ' \n' ' '), driver ${our_version:-$version}; written by make test-gpu"
  echo "driver=${our_version:-$version}"
  cuda_number=$(echo "$our_cuda" | awk -F. '{ print $1 * 1000 + $2 * 10 }')
  echo "cuda=$cuda_number"
  while IFS=, read -r index minor name brand uuid bus cc; do
    mig=unsupported
    # Without nvidia-smi -q, that a GPU has MIG devices is all that shows its mode.
    case " $(mig_gpus)" in *" $index "*) mig=on ;; esac
    case $(awk -F '|' -v i="$index" '$1 == i { print $6 }' "$work/smi") in
      Enabled) mig=on ;;
      Disabled) mig=off ;;
    esac
    bus=$(echo "${bus:-none}" | tr A-Z a-z | sed 's/^0000\(....:\)/\1/')
    case $minor in '' | *[!0-9]*) minor=none ;; esac
    echo "gpu minor=$minor bus=$bus cc=${cc:-0.0} brand=$(brand_number "$brand") mig=$mig uuid=$uuid name=$name"
  done < "$work/gpus"
  # nvidia-smi -L has names and UUIDs, nvidia-smi -q the instances, both in the same order.
  awk '/^GPU [0-9A-Fa-f]+:/ { gpu++ } / GPU Instance ID/ { gi = $NF } / Compute Instance ID/ { print gi, $NF }' \
    "$work/seen.smi-q" 2>/dev/null > "$work/instances"
  awk -v instances="$work/instances" '
    /^GPU / { gpu = $2; sub(/:/, "", gpu) }
    /^ +MIG / {
      gi = ci = "none"
      if ((getline line < instances) > 0) { split(line, id, " "); gi = id[1]; ci = id[2] }
      name = $0; sub(/^ +MIG /, "", name); sub(/ +Device.*/, "", name)
      slot = $0; sub(/.*Device +/, "", slot); sub(/:.*/, "", slot)
      uuid = $0; sub(/.*UUID: /, "", uuid); sub(/\).*/, "", uuid)
      line = "mig gpu=" gpu " slot=" slot " gi=" gi " ci=" ci " uuid=" uuid " name=" name
      # Without the instances the tests cannot read it; a person can add them.
      print (gi == "none" ? "# " : "") line
    }' "$work/seen.smi-L" 2>/dev/null
  # DRM nodes, by the address of their GPU.
  for directory in /sys/bus/pci/drivers/nvidia/*/drm; do
    [ -d "$directory" ] || continue
    bus=${directory%/drm}
    bus=${bus##*/}
    card=$(ls "$directory" | sed -n 's/^card\([0-9]*\)$/\1/p' | head -n 1)
    render=$(ls "$directory" | sed -n 's/^renderD\([0-9]*\)$/\1/p' | head -n 1)
    gpu=$(awk -F, -v bus="$bus" 'tolower($6) ~ bus "$" { print $1 }' "$work/gpus")
    [ ! "$gpu" ] || [ ! "$card" ] || [ ! "$render" ] || echo "drm gpu=$gpu card=$card render=$render"
  done
  for channel in /dev/nvidia-caps-imex-channels/channel*; do
    [ ! -e "$channel" ] || echo "channel number=${channel##*channel}"
  done
  layout
}

facts() {
  echo "# mounts on driver files and nodes, if this machine is itself a container"
  awk '$2 ~ /nvidia|libcuda/ { print "#   " $2, $3 }' /proc/mounts
  echo "# nodes: major minor path"
  list_nodes | tr : ' ' | sed 's/^/#   /'
  echo "# /proc/devices"
  grep -iE 'nvidia|nvhost|gdr|drm' /proc/devices | sed 's/^/#   /'
  echo "# /proc/driver/nvidia"
  ls /proc/driver/nvidia 2>/dev/null | tr '\n' ' ' | sed 's/^/#   /'
  echo
  sed 's/^/#   params: /' /proc/driver/nvidia/params 2>/dev/null
  head -n 20 /proc/driver/nvidia-caps/mig-minors 2>/dev/null | sed 's/^/#   mig-minors: /'
  echo "# nvidia-smi -q, these lines only"
  grep -E '^ *(Product (Name|Brand|Architecture)|Display (Mode|Active)|Persistence Mode|Addressing Mode|Current|Pending|Driver Model|MIG Mode|Minor Number|Compute Mode|Virtualization Mode|GSP Firmware Version|Attached GPUs|State|Status) *(:|$)' \
    "$work/seen.smi-q" 2>/dev/null | sed 's/^/#   /'
  echo "# CUDA loads"
  sed 's/^/#   /' "$work/loaded-here" 2>/dev/null
}

write_machine() {
  learn_to_hide
  { machine_file; facts; } | hide > "$work/machine"
  {
    printf '\n== Machine file: from the next line to the end mark\n'
    cat "$work/machine"
    echo "== End of the machine file"
  } >&3
  title "Machine file: $(wc -l < "$work/machine") lines, in the report alone"
  [ "$report" ] || cat "$work/machine"
}
