# To be sourced in the machine: checks, and what a container must show.
# shellcheck shell=bash

wrong=0 tried=0
check() { # NAME COMMAND...: the command succeeds
  local name=$1
  shift
  tried=$((tried + 1))
  if "$@" > /tmp/log 2>&1; then echo "ok     $name"; else echo "WRONG  $name"; sed 's/^/       /' /tmp/log | tail -25; wrong=$((wrong + 1)); fi
}
says() { # TEXT COMMAND...: it fails, and says so
  local text=$1
  shift
  ! "$@" > /tmp/said 2>&1 && grep -qF -- "$text" /tmp/said || { cat /tmp/said; return 1; }
}
# until_true SECONDS COMMAND...
until_true() {
  local tries=$(($1 * 10))
  shift
  while ! "$@" > /dev/null 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { echo "never true: $*"; "$@"; return 1; }
    sleep 0.1
  done
}
title() { printf -- '-- %s\n' "$*"; }
wanted() { [ -z "${NVC_ENGINES_ONLY:-}" ] || case ",$NVC_ENGINES_ONLY," in *",$1,"*) ;; *) return 1 ;; esac; }

# ---- what a container must show --------------------------------------------------------------------------------------

# Each node that is there and what opening it says; nodes that the container makes itself; the cache; the GPUs.
# shellcheck disable=SC2016 # expanded in the container
look='for n in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-caps/nvidia-cap1[45]*; do
  case $n in *"*") continue ;; esac
  e=$( (exec 3<$n) 2>&1); echo "$n: ${e##*: }"
done
rm -f /tmp/n0 /tmp/n1
for m in 0 1; do
  mknod /tmp/n$m c 195 $m 2>/dev/null || continue
  e=$( (exec 3</tmp/n$m) 2>&1); echo "own node $m: ${e##*: }"
done
ls /proc/driver/nvidia/gpus
/sbin/ldconfig -p | grep -v i386 | grep -c libcuda.so.1
nvidia-smi -L'
granted='No such device or address'
expected() { # GPU [mknod]: the text for that GPU alone; 1:0 is the first MIG device of GPU 1
  local number=${1%:*} node
  for node in "nvidia$number" nvidiactl nvidia-uvm; do echo "/dev/$node: $granted"; done
  if [ "$1" = 1:0 ]; then printf '/dev/nvidia-caps/nvidia-cap%s: %s\n' 147 "$granted" 148 "$granted"; fi
  if [ "${2:-}" = mknod ]; then
    for minor in 0 1; do
      if [ $minor = "$number" ]; then echo "own node $minor: $granted"; else echo "own node $minor: Operation not permitted"; fi
    done
  fi
  if [ "$1" = 0 ]; then echo 0000:3b:00.0; else echo 0000:af:00.0; fi
  echo 1
  if [ "$1" = 0 ]; then
    echo 'GPU 0: NVIDIA L4 (simulated) (UUID: GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10)'
  else
    echo 'GPU 0: NVIDIA H100 PCIe (simulated) (UUID: GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21)'
  fi
  if [ "$1" = 1:0 ]; then echo '  MIG 3g.40gb         Device  0: (UUID: MIG-7c5f2b9e-1d84-5a06-9b3c-e2f4a6d81030)'; fi
}
sees() { # GPU [mknod] -- COMMAND...: the container of that command sees that GPU alone
  local gpu=$1 way=
  shift
  [ "$1" = -- ] || { way=$1; shift; }
  shift
  "$@" sh -c "$look" > /tmp/seen 2> /tmp/errors || { cat /tmp/seen /tmp/errors; return 1; }
  expected "$gpu" $way | diff - <(tr -d '\r' < /tmp/seen)
}
sees_mig() { # COMMAND...: the first MIG device of GPU 1 alone
  "$@" sh -c 'nvidia-smi -L; ls /dev/nvidia-caps' > /tmp/seen 2> /tmp/errors || { cat /tmp/seen /tmp/errors; return 1; }
  grep -q 'MIG 3g.40gb' /tmp/seen && ! grep -qE 'MIG 2g.20gb|cap15[67]' /tmp/seen || { cat /tmp/seen; return 1; }
}
sees_nothing() { # COMMAND...
  "$@" sh -c 'ls /dev' > /tmp/seen 2> /tmp/errors || { cat /tmp/seen /tmp/errors; return 1; }
  ! grep nvidia /tmp/seen
}
generate() { nvidia-ctk --quiet cdi generate --output=/var/run/cdi/nvidia.yaml "$@"; }
