#!/bin/bash
# Tries the engines of the root that engines.sh has entered. Each check is one line; any that failed decides
# the exit status.
set -uo pipefail
exec 3<&0 < /dev/null

. /srv/engines/look.sh

# ---- annotations -----------------------------------------------------------------------------------------------------

test_annotations() { # COMMAND...: runs a container by our runtime; annotation and variable narrow each other
  local uuid=GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10 annotation=cdi.k8s.io/x=nvidia.com/gpu
  check "-e all, --annotation gpu=0" sees 0 mknod -- \
    "$@" --cap-add=MKNOD -e NVIDIA_VISIBLE_DEVICES=all --annotation $annotation=0 image
  check "-e UUID, --annotation gpu=all" sees 0 mknod -- \
    "$@" --cap-add=MKNOD -e NVIDIA_VISIBLE_DEVICES=$uuid --annotation $annotation=all image
  check "-e void, --annotation gpu=all" sees_nothing "$@" -e NVIDIA_VISIBLE_DEVICES=void --annotation $annotation=all image
  check "-e UUID, --annotation gpu=1:0" says "no GPU is left" \
    "$@" -e NVIDIA_VISIBLE_DEVICES=$uuid --annotation $annotation=1:0 image true
}

# ---- docker ----------------------------------------------------------------------------------------------------------

start_docker() {
  dockerd --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs > /run/dockerd.log 2>&1 &
  docker_pid=$!
  until_true 60 docker version || { tail -5 /run/dockerd.log; return 1; }
}
stop_docker() { kill "$docker_pid"; wait "$docker_pid"; true; }
docker_run() { docker run --rm --net=none "$@"; }

test_docker() {
  title "docker $(dockerd --version | awk '{ print $3 }' | tr -d ,), $(runc --version | head -1)"
  mkdir -p /etc/docker
  printf '{\n  "log-driver": "json-file",\n    "features": {"cdi": true}\n}' > /etc/docker/daemon.json
  cp /etc/docker/daemon.json /tmp/daemon.json
  check "nvidia-ctk runtime configure" nvidia-ctk --quiet runtime configure --runtime=docker
  check "cdi generate" generate
  check "dockerd starts" start_docker
  tar -C /srv/image -cf /tmp/image.tar .
  check "import" docker import /tmp/image.tar image
  check "--runtime=nvidia" sees 1 mknod -- docker_run --cap-add=MKNOD --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1 image
  check "--gpus" sees 1 mknod -- docker_run --cap-add=MKNOD --gpus device=1 image
  check "--device nvidia.com/gpu=0" sees 0 mknod -- docker_run --cap-add=MKNOD --device nvidia.com/gpu=0 image
  check "a MIG device by CDI" sees_mig docker_run --device nvidia.com/gpu=1:0 image
  check "a MIG device by the runtime" sees_mig docker_run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1:0 image
  check "a MIG device by --gpus" sees_mig docker_run --gpus device=1:0 image
  check "no GPU without asking" sees_nothing docker_run --runtime=nvidia image
  test_annotations docker_run --runtime=nvidia
  check "an unknown GPU is named (--gpus)" says 7 docker_run --gpus device=7 image true
  check "an unknown GPU is named (runtime)" says "7" docker_run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=7 image true
  docker run -d --net=none --name kept --cap-add=MKNOD --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=1 image sleep 1000 > /dev/null
  check "exec" sees 1 mknod -- docker exec kept
  check "update keeps GPUs" docker update --restart=no kept
  check "seen after update" sees 1 mknod -- docker exec kept
  check "restart" docker restart -t 0 kept
  check "seen after restart" sees 1 mknod -- docker exec kept
  docker rm -f kept > /dev/null
  refresh docker_run
  test_nvidia_docker
  stop_docker
  check "runtime configure --remove" nvidia-ctk --quiet runtime configure --runtime=docker --remove
  check "daemon.json is what it was" cmp /tmp/daemon.json /etc/docker/daemon.json
}

# A running engine notices a changed file.
refresh() { # COMMAND...
  generate --device-id=1:0
  sleep 1
  check "a device that is gone from the file" says nvidia.com/gpu=0 "$@" --device nvidia.com/gpu=0 image true
  generate
  sleep 1
  check "a device that is back" sees 0 mknod -- "$@" --device nvidia.com/gpu=0 image
}

test_nvidia_docker() {
  title "nvidia-docker with docker $(docker version --format '{{.Client.Version}}')"
  nvidia-docker-plugin > /run/plugin.log 2>&1 &
  until_true 20 test -e /run/docker/plugins/nvidia-docker.sock || cat /run/plugin.log
  docker import -c 'ENV PATH=/usr/local/nvidia/bin:/usr/bin:/bin LD_LIBRARY_PATH=/usr/local/nvidia/lib64' \
    -c 'LABEL com.nvidia.volumes.needed=nvidia_driver' -c 'LABEL com.nvidia.cuda.version=11.0.3' /tmp/image.tar cuda > /dev/null
  local backend
  for backend in cdi runtime gpus; do
    check "back end $backend" sees 0 mknod -- env NV_GPU=0 NV_BACKEND=$backend nvidia-docker run --rm --net=none --cap-add=MKNOD image
  done
  check "it chooses CDI by itself" grep -q "^docker run --device=nvidia.com/gpu=0 " <(NV_GPU=0 NV_DRY_RUN=1 nvidia-docker run image 2> /dev/null)
  check "that works" sees 0 mknod -- env NV_GPU=GPU-51a2 nvidia-docker run --rm --net=none --cap-add=MKNOD cuda
  # A GPU with MIG devices is no CDI device.
  check "it chooses the runtime where CDI has no device" sees 1 mknod -- \
    env NV_GPU=1 nvidia-docker run --rm --net=none --cap-add=MKNOD cuda
  check "the volume" by_volume
  check "its volume is listed" grep -q nvidia_driver_570.124.06 <(docker volume ls -q)
  check "docker removes it" docker volume rm nvidia_driver_570.124.06
  check "it is unmounted" not_mounted
  check "ps" nvidia-docker ps -a
  check "version" grep -q '^NVIDIA Docker: ' <(nvidia-docker version)
  check "the exit status" status_7
  kill %%
}
by_volume() {
  NV_GPU=1 NV_BACKEND=volume nvidia-docker run --rm --net=none cuda sh -c 'nvidia-smi -L; ls /dev' > /tmp/seen 2>&1
  grep -q 'GPU 0: NVIDIA H100' /tmp/seen && ! grep -x nvidia0 /tmp/seen || { cat /tmp/seen /run/plugin.log; return 1; }
}
not_mounted() { ! grep nvidia_driver/ /proc/self/mountinfo; }
status_7() { nvidia-docker run --rm --net=none image sh -c 'exit 7'; [ $? = 7 ]; }

# ---- the Go reference library ----------------------------------------------------------------------------------------

# Groups of nodes need CDI 0.7.0, which Debian 12's library does not know.
grouped() { # OPTIONS...: generates with nodes of a group
  chgrp video /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm && chmod 660 /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm || return
  nvidia-ctk --quiet cdi generate --gids "$@"
}
ungrouped() { chgrp root /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm && chmod 666 /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm; }

test_reference() {
  title "the reference library"
  local options n=0 ending
  for options in "" --hooks=merged --style=live --mode=management --format=json; do
    n=$((n + 1)) ending=yaml
    case $options in *json*) ending=json ;; esac
    # shellcheck disable=SC2086 # words
    check "generate --gids $options" grouped $options "--output=/tmp/reference$n/s.$ending"
    check "it has groups" grep -q additionalGids "/tmp/reference$n/s.$ending"
    check "the library takes it" cdi-check "/tmp/reference$n/s.$ending"
  done
  sed 's/^cdiVersion: .*/cdiVersion: "0.5.0"/' /tmp/reference1/s.yaml > /tmp/reference1/old.yaml
  check "not as version 0.5.0" says old.yaml cdi-check /tmp/reference1/old.yaml
  ungrouped
}

# ---- podman and buildah ----------------------------------------------------------------------------------------------

podman_run() { # RUNTIME OPTIONS...
  local runtime=$1
  shift
  podman --cgroup-manager=cgroupfs --events-backend=none "--runtime=$runtime" "${global[@]}" run --rm --network=none \
    --pids-limit=0 --ulimit nofile=20000:20000 --ulimit nproc=4096:4096 --log-driver=none "$@"
}

test_podman() {
  title "podman $(podman --version | awk '{ print $3 }'), $(crun --version | head -1), $(runc --version | head -1)"
  global=()
  check "cdi generate" generate
  tar -C /srv/image -cf /tmp/image.tar .
  check "import" podman --cgroup-manager=cgroupfs import /tmp/image.tar image
  local runtime
  for runtime in crun runc; do
    check "--device nvidia.com/gpu=0 ($runtime)" sees 0 mknod -- podman_run $runtime --cap-add=MKNOD --device nvidia.com/gpu=0 image
    check "a MIG device by CDI ($runtime)" sees_mig podman_run $runtime --device nvidia.com/gpu=1:0 image
    check "no GPU without asking ($runtime)" sees_nothing podman_run $runtime image
    global=("--hooks-dir=/etc/nvidia-hooks")
    mkdir -p /etc/nvidia-hooks
    cp /srv/pkg/hooks/oci-nvidia-hook.json /etc/nvidia-hooks/
    check "hooks.d ($runtime)" sees 1 mknod -- podman_run $runtime --cap-add=MKNOD -e NVIDIA_VISIBLE_DEVICES=1 image
    global=()
  done
  check "--runtime=nvidia-container-runtime" sees 1 mknod -- \
    podman_run /usr/bin/nvidia-container-runtime --cap-add=MKNOD -e NVIDIA_VISIBLE_DEVICES=1 image
  test_annotations podman_run /usr/bin/nvidia-container-runtime
  echo 'FROM image' > /tmp/Containerfile
  check "an image with annotations" podman --cgroup-manager=cgroupfs build --annotation=cdi.k8s.io/x=nvidia.com/gpu=0 \
    --tag=annotated --pull=never --file=/tmp/Containerfile /srv/pkg
  check "has them" grep -q nvidia.com/gpu=0 <(podman --cgroup-manager=cgroupfs image inspect annotated --format '{{.Annotations}}')
  check "an image's annotations do not arrive" sees_nothing podman_run /usr/bin/nvidia-container-runtime annotated
  podman_run crun -d --name kept --cap-add=MKNOD --device nvidia.com/gpu=0 image sleep 1000 > /dev/null
  check "exec" sees 0 mknod -- podman --cgroup-manager=cgroupfs exec kept
  podman --cgroup-manager=cgroupfs rm -f -t 0 kept > /dev/null
  check "cdi generate --gids" grouped --output=/var/run/cdi/nvidia.yaml
  check "a user gets the nodes' group" grep -qw 44 <(podman_run crun --user 1000:1000 --device nvidia.com/gpu=0 image id -G)
  ungrouped
  generate --hooks=merged
  check "merged hooks (crun)" sees 0 mknod -- podman_run crun --cap-add=MKNOD --device nvidia.com/gpu=0 image
  check "merged hooks (runc)" sees 0 mknod -- podman_run runc --cap-add=MKNOD --device nvidia.com/gpu=0 image
  refresh podman_run crun --cap-add=MKNOD
}

test_buildah() {
  title "buildah $(buildah --version | awk '{ print $3 }')"
  # With runc it fails for every specification without permissions: buildah 1.39 leaves a device rule without access. By
  # default it only reads /etc/cdi.
  check "cdi generate" nvidia-ctk --quiet cdi generate --output=/etc/cdi/nvidia.yaml
  rm -f /var/run/cdi/nvidia.yaml
  check "from" buildah from --ulimit nofile=20000:20000 --ulimit nproc=4096:4096 --name work scratch
  check "add" buildah add work /srv/image /
  check "run --device nvidia.com/gpu=0" sees 0 mknod -- buildah run --network=none --isolation=oci --runtime=crun \
    --cap-add=CAP_MKNOD --device nvidia.com/gpu=0 work --
  check "a MIG device" sees_mig buildah run --network=none --isolation=oci --device nvidia.com/gpu=1:0 work --
  rm /etc/cdi/nvidia.yaml
}

# ---- containerd ------------------------------------------------------------------------------------------------------

start_containerd() {
  containerd > /run/containerd.log 2>&1 &
  containerd_pid=$!
  until_true 60 ctr version || { tail -5 /run/containerd.log; return 1; }
}
stop_containerd() { kill "$containerd_pid"; wait "$containerd_pid"; true; }
cri() { nvc-cri /run/containerd/containerd.sock run "$@"; }
ctr_run() { # OPTIONS... COMMAND...: a container of the plain root, by its name
  n=$((${n:-0} + 1))
  ctr run --rm --rootfs "${@:1:$#-3}" /srv/image "c$n" "${@: -3}"
}
import_image() { # for containerd, by buildah, also as the sandbox's
  buildah from --name image-for-cri scratch && buildah add -q image-for-cri /srv/image / &&
    buildah config --cmd 'sleep 1000' --env PATH=/usr/bin:/bin:/sbin image-for-cri &&
    buildah commit -q image-for-cri "oci-archive:/tmp/cri.tar:$1" && ctr -n k8s.io images import /tmp/cri.tar
}

test_containerd() {
  local version
  version=$(containerd --version | awk '{ print $3 }')
  title "containerd $version, $(runc --version | head -1)"
  check "cdi generate" generate
  # This root may lack CAP_SYS_RESOURCE, which a pod's score for the OOM killer takes.
  sed -i 's/^  \[plugins."io.containerd.grpc.v1.cri"\]$/&\n    restrict_oom_score_adj = true/' /etc/containerd/config.toml
  cp /etc/containerd/config.toml /tmp/config.toml
  check "nvidia-ctk runtime configure" nvidia-ctk --quiet runtime configure --runtime=containerd --cdi.enabled
  check "containerd starts" start_containerd
  check "its configuration has the runtime" grep -q nvidia-container-runtime <(containerd config dump 2> /dev/null)
  check "the CRI answers" nvc-cri /run/containerd/containerd.sock version
  check "ctr, the runtime" sees 1 mknod -- ctr_run --runc-binary=/usr/bin/nvidia-container-runtime --env NVIDIA_VISIBLE_DEVICES=1 --env "PATH=$PATH"
  # The client of 1.7 takes paths only.
  case $version in
    1.*) ;;
    *) check "ctr --device nvidia.com/gpu=0" sees 0 mknod -- ctr_run --device nvidia.com/gpu=0 --env "PATH=$PATH" ;;
  esac
  # containerd says which image it wants for a pod.
  pause=$(containerd config dump 2> /dev/null | sed -n "s/^ *sandbox\(_image\)\{0,1\} = ['\"]\(.*\)['\"]/\2/p" | head -1)
  check "import of $pause" import_image "$pause"
  check "CRI, runtime class nvidia" sees 1 mknod -- cri --handler nvidia --env NVIDIA_VISIBLE_DEVICES=1 "$pause"
  check "CRI, CDI device" sees 0 mknod -- cri --device nvidia.com/gpu=0 "$pause"
  check "CRI, CDI annotation" sees 0 mknod -- cri --annotation cdi.k8s.io/nvc=nvidia.com/gpu=0 "$pause"
  check "CRI, MIG device" sees_mig cri --device nvidia.com/gpu=1:0 "$pause"
  check "CRI, no GPU without asking" sees_nothing cri --handler nvidia "$pause"
  generate --device-id=1:0
  sleep 1
  check "a device that is gone from the file" says nvidia.com/gpu=0 cri --device nvidia.com/gpu=0 "$pause" true
  generate
  sleep 1
  check "a device that is back" sees 0 mknod -- cri --device nvidia.com/gpu=0 "$pause"
  stop_containerd
  check "runtime configure --remove" nvidia-ctk --quiet runtime configure --runtime=containerd --remove
  check "config.toml is what it was" cmp /tmp/config.toml /etc/containerd/config.toml
  check "no drop-in is left" test ! -e /etc/containerd/conf.d/99-nvidia.toml
}

# ---- hooks -----------------------------------------------------------------------------------------------------------

# Each cell is a line; the versions are those that this machine's tests do not have.
hook_matrix() {
  cp -a /srv/image /srv/matrix-root
  mkdir /srv/matrix
  nvc-hook-matrix /usr/bin /srv/evil.so /srv/matrix-root /srv/matrix /usr/sbin/runc /usr/bin/crun > /tmp/matrix 2>&1
}
test_hooks() {
  title "hooks with hostile images: $(runc --version | head -1), $(crun --version | head -1)"
  check "no program obeys the image" hook_matrix
  sed 's/^/  /' /tmp/matrix
  check "all of it was tried" test "$(wc -l < /tmp/matrix)" -ge 58
}

# Checks of each group at least: fewer have not all been tried.
declare -A least=([hooks]=2 [reference]=16 [docker]=38 [podman]=25 [buildah]=5 [containerd]=17)
for group in hooks reference docker podman buildah containerd; do
  wanted $group || continue
  before=$tried
  "test_$group"
  number=$((tried - before))
  if [ $number -lt "${least[$group]}" ]; then
    echo "WRONG  $group: $number of ${least[$group]} checks; the others were not tried"
    wrong=$((wrong + 1))
  fi
  echo "-- $group: $number checks"
done
[ -z "${NVC_ENGINES_SHELL:-}" ] || bash <&3
[ $wrong = 0 ] || { echo "$wrong wrong"; exit 1; }
echo "all right"
