# Makes containers of each capability alone, many at once, and clients of MPS. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# Where the daemon of an engine searches for programs.
daemon_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Judges what `check given` printed: all loads but for what the image lacks, and these programs are there.
judge_given() { # WAY FILE NEEDS-LIBRARIES PROGRAMS...
  way=$1 file=$2 wanted=$3
  shift 3
  lacks=$(sed -n 's/^lacks \([^ ]*\) .*/\1/p' "$file" | sort -u)
  lost=$(echo "$lacks" | grep -xF -f "$work/own" | tr '\n' ' ')
  broken=$(sed -n 's/^broken //p' "$file" | sort -u | tr '\n' ';')
  number=$(grep -c '^library ' "$file")
  for program; do
    grep -q "^program .*/$program\$" "$file" || broken="${broken}no $program;"
  done
  if [ "$lost" ]; then
    fail "$way: missing files of the driver, which given ones need: $lost"
  elif [ "$broken" ]; then
    fail "$way: $broken"
  elif [ "$number" = 0 ] && [ "$wanted" ]; then
    fail "$way: it was given no library"
  else
    pass "$way: $number libraries and $(grep -c '^program ' "$file") programs${lacks:+, but for what the image lacks: }$(echo "$lacks" | tr '\n' ' ')"
  fi
}

# One capability in one way; the request is of the first GPU.
with_capability() { # WAY CAPABILITY PATH WHOSE-PATH
  mode=$1 capability=$2 search=$3
  way="$capability alone, $mode, PATH of $4"
  time_left 60 || { skip "$way: no time left"; return; }
  [ "$mode" != auto ] || [ ! "$own_ldconfig" ] || { skip "$way: no /sbin/ldconfig"; return; }
  # Without this library the machine has nothing of the capability.
  request=$first stem=
  case $capability in
    compute) stem=libcuda ;;
    utility) stem=libnvidia-ml ;;
    graphics) stem=libGLX_nvidia ;;
    video) stem=libnvcuvid ;;
  esac
  libraries=
  [ ! "$stem" ] || ! grep -q "/$stem\.so" "$work/libraries" || libraries=yes
  [ "$mode" != cdi ] || request="nvidia.com/gpu=$first"
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$request\", \"NVIDIA_DRIVER_CAPABILITIES=$capability\"" '' 'check given'
  configure_runtime "${mode#by hand}"
  if [ "$mode" = "by hand" ]; then
    limit 90 env "PATH=$search" "$busybox" unshare -m --propagation private "$busybox" sh "$work/containers.sh" --inside \
      "$work/c/rootfs" "$first" "--$capability"
  else
    run_bundle "$work/bin/nvidia-container-runtime"
  fi
  search=
  if [ $status = 0 ]; then
    program=
    case $capability,$smi in utility,?*) program=nvidia-smi ;; esac
    cp "$work/out" "$work/given"
    judge_given "$way" "$work/given" "$libraries" $program
  elif [ $status = 99 ]; then
    skip "$way: this machine does not let us make a container by hand"
  else
    fail "$way: exit code $status"
    details "$work/err"
  fi
}

test_capabilities() {
  title "Each capability alone"
  [ "$containers_work" ] && [ "$first" ] || { skip "capabilities: no container, or every GPU is in MIG mode"; return; }
  # What is the driver's own: files of its version, and the names in them.
  tr '\n' '\0' < "$work/files" | xargs -0 "$check" names | awk '{ print $3 }' > "$work/own"
  sed 's|.*/||' "$work/files" >> "$work/own"
  for capability in compute utility graphics display video ngx compat32; do
    for mode in "by hand" legacy auto; do
      with_capability "$mode" $capability "$work/tools:$daemon_path" "a daemon"
    done
  done
  [ ! -s "$work/cdi/nvidia.yaml" ] || with_capability cdi utility "$work/tools:$daemon_path" "a daemon"
  for mode in "by hand" legacy auto; do
    with_capability "$mode" utility "$work/tools:$machine_path" "the caller"
  done
}

test_many() {
  title "16 containers at once"
  [ "$containers_work" ] && [ "$first" ] && [ "$cuda_works" ] || { skip "16 containers at once: none works"; return; }
  time_left 100 || { skip "16 containers at once: no time left"; return; }
  mode=auto
  [ ! "$own_ldconfig" ] || mode=legacy
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$first\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\"" ''
  configure_runtime $mode
  mkdir "$work/many"
  for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    cp -a "$work/c" "$work/many/$n"
    (
      cd "$work/many/$n" || exit
      timeout -k 5 90 "$work/bin/nvidia-container-runtime" --root "$work/state" run "nvc-test-gpu-$$-many-$n" \
        > ../out.$n 2> ../err.$n < /dev/null 3>&-
    ) &
  done
  wait
  cat "$work/many"/err.* > "$work/err"
  same "16 containers at once: those that computed" "$(grep -l '^computed ' "$work/many"/out.* | wc -l)" 16
  [ ! -s "$work/err" ] || details "$work/err"
  rm -rf "$work/many"
}

# ---- MPS -----------------------------------------------------------------------------------------------------------------

# Asks the control daemon.
ask_mps() { echo "$1" | timeout -k 5 20 env "PATH=$machine_path" "$control" 2> /dev/null; }

# Prints how many clients the servers have.
clients() {
  for server in $(ask_mps get_server_list); do
    ask_mps "get_client_list $server"
  done | grep -c '^[0-9]'
}

# A container that uses a GPU for a while; it is a client, or is not.
mps_container() { # WAY MODE MOUNTS yes|no
  way=$1 mode=$2 mounts=$3 wanted=$4
  time_left 60 || { skip "MPS, $way: no time left"; return; }
  hold='check hold 3'
  [ ! "$simulated" ] || hold=
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$first\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\"" '' \
    "[ ! -S /tmp/nvidia-mps/control ] || echo mps socket; $hold" "$mounts"
  configure_runtime "$mode"
  echo 0 > "$work/clients"
  if [ ! "$simulated" ]; then
    # Its server starts with the first client.
    (
      most=0 n=0
      while [ ! -e "$work/ended" ] && [ $((n += 1)) -lt 60 ]; do
        now=$(clients)
        [ "$now" -le "$most" ] || most=$now
        echo $most > "$work/clients"
        sleep .5
      done
    ) &
  fi
  run_bundle "$work/bin/nvidia-container-runtime"
  echo > "$work/ended"
  wait
  rm -f "$work/ended"
  if [ $status != 0 ]; then
    fail "MPS, $way: exit code $status"
    details "$work/err"
    return
  fi
  found=no
  ! grep -q '^mps socket' "$work/out" || found=yes
  same "MPS, $way: the socket is there" $found "$wanted"
  [ ! "$simulated" ] || return
  [ "$(cat "$work/clients")" -gt 0 ] && found=yes || found=no
  same "MPS, $way: it is a client" $found "$wanted"
}

test_mps() {
  title "MPS"
  control=$(PATH=$machine_path; command -v nvidia-cuda-mps-control)
  mps_started=
  if [ ! "$containers_work" ] || [ ! "$first" ] || [ "$own_ldconfig" ]; then
    skip "MPS: no container, or no /sbin/ldconfig"
    return
  fi
  if [ ! "$simulated" ] && [ "$control" ] && [ "$mps" ] && ! ask_mps get_server_list > /dev/null; then
    limit 20 env "PATH=$machine_path" "CUDA_MPS_LOG_DIRECTORY=$work/mps-log" "$control" -d && mps_started=yes
  fi
  if [ ! -S /tmp/nvidia-mps/control ] || { [ ! "$simulated" ] && ! ask_mps get_server_list > /dev/null; }; then
    skip "MPS: no control daemon runs here; --mps starts one for the test"
    return
  fi
  bound=", {\"destination\": \"/tmp/nvidia-mps\", \"type\": \"bind\", \"source\": \"/tmp/nvidia-mps\", \"options\": [\"rbind\"]}"
  mps_container "legacy" legacy '' yes
  mps_container "jit-cdi" auto '' no
  mps_container "jit-cdi with the directory bound in" auto "$bound" yes
  [ ! "$mps_started" ] || ask_mps quit
}
