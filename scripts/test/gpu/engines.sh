# Starts a container by each engine that is installed, with our runtime in its configuration. Each has its own storage,
# sockets and configuration below $work: nothing of the machine's engines is used or changed. Sourced by run.sh.
# shellcheck shell=sh disable=SC2154

# Prints where the machine has a program.
installed() { PATH=$machine_path:/usr/local/sbin:/usr/sbin:/sbin; command -v "$1"; }

# A simulated driver is in this procfs alone.
shared_proc() { [ ! "$simulated" ] || echo "--pid=host -v /proc:/proc"; }

# Judges a container of an engine, whose output is in $work/out.
judge_engine() { # ENGINE
  if [ $status = 0 ]; then
    cp "$work/out" "$work/engine.out"
    judge "$1" "$work/engine.out" 1 "$first_node"
  else
    fail "$1: exit code $status"
    details "$work/err"
  fi
}

test_crun() {
  crun=$(installed crun) || { skip "crun: it is not installed"; return; }
  bundle '' '' true
  run_bundle "$crun" || { skip "crun: it cannot run a container here: $(tail -n 1 "$work/err")"; return; }
  bundle ", \"NVIDIA_VISIBLE_DEVICES=$first\", \"NVIDIA_DRIVER_CAPABILITIES=compute,utility\"" ''
  configure_runtime auto "$crun"
  run_bundle "$work/bin/nvidia-container-runtime"
  judge_engine crun
}

test_podman() {
  podman=$(installed podman) || { skip "podman: it is not installed"; return; }
  printf '[storage]\ndriver = "vfs"\nrunroot = "%s"\ngraphroot = "%s"\n' "$work/podman-run" "$work/podman" > "$work/storage.conf"
  printf '[containers]\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nlock_type = "file"\n' > "$work/containers.conf"
  make_root "$work/c/rootfs"
  configure_runtime auto
  by_podman() { # RUNTIME COMMAND...
    runtime=$1
    shift
    # shellcheck disable=SC2046 # words
    limit 90 env "HOME=$work" "PATH=$machine_path:/usr/sbin:/sbin" "CONTAINERS_STORAGE_CONF=$work/storage.conf" "CONTAINERS_CONF=$work/containers.conf" \
      "$podman" --root "$work/podman" --runroot "$work/podman-run" --tmpdir "$work/podman-tmp" "--runtime=$runtime" run \
      --rm --network=none --cgroup-parent=$group --log-driver=none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 $(shared_proc) -e "NVIDIA_VISIBLE_DEVICES=$first" \
      -e NVIDIA_DRIVER_CAPABILITIES=compute,utility -e PATH=/usr/bin:/usr/sbin --rootfs "$work/c/rootfs" "$@"
  }
  by_podman "$work/bin/runc" /usr/bin/busybox true || { skip "podman: it cannot run a container here: $(tail -n 1 "$work/err")"; return; }
  # podman 5 starts a container without its own environment.
  printf '#!/bin/sh\nNVIDIA_CTK_CONFIG_FILE_PATH=%s exec %s "$@"\n' "$NVIDIA_CTK_CONFIG_FILE_PATH" \
    "$work/bin/nvidia-container-runtime" > "$work/podman-runtime"
  chmod 755 "$work/podman-runtime"
  by_podman "$work/podman-runtime" /bin/sh /job
  judge_engine "podman $("$podman" --version | awk '{ print $3 }')"
}

test_docker() {
  dockerd=$(installed dockerd) && docker=$(installed docker) && containerd=$(installed containerd) ||
    { skip "docker: it is not installed"; return; }
  make_root "$work/c/rootfs"
  configure_runtime auto
  d=$work/docker
  mkdir "$d"
  # Without these, containerd makes no directory outside.
  printf 'version = 2\ndisabled_plugins = ["io.containerd.%s", "io.containerd.%s", "io.containerd.%s"]\n' grpc.v1.cri \
    internal.v1.opt nri.v1.nri > "$d/containerd.toml"
  # Containers have no network, and Debian 13's docker may lack the proxy.
  printf '{"exec-opts": ["native.cgroupdriver=cgroupfs"], "userland-proxy": false, "runtimes": {"nvidia": {"path": "%s"}}}\n' \
    "$work/bin/nvidia-container-runtime" > "$d/daemon.json"
  # An old dockerd writes a key there.
  etc_docker=new
  if [ -e /etc/docker ]; then
    mount -t tmpfs tmpfs /etc/docker || { skip "docker: /etc/docker cannot be hidden from its daemon"; return; }
    etc_docker=hidden
  fi
  # The machine may have no runc.
  path=$machine_path:/usr/sbin:/sbin:$work/bin
  PATH=$path "$containerd" --config "$d/containerd.toml" --root "$d/c-root" --state "$d/c-state" --address "$d/c.sock" \
    > "$d/containerd.log" 2>&1 < /dev/null 3>&- &
  containerd_pid=$!
  HOME=$work PATH=$path "$dockerd" --config-file "$d/daemon.json" --data-root "$d/root" --exec-root "$d/exec" --pidfile "$d/pid" \
    --host "unix://$d/sock" --containerd "$d/c.sock" --iptables=false --ip6tables=false --bridge=none --ip-forward=false \
    --storage-driver=vfs --cgroup-parent=$group \
    > "$d/dockerd.log" 2>&1 < /dev/null 3>&- &
  dockerd_pid=$!
  by_docker() { limit 90 env "PATH=$path" DOCKER_CONFIG="$d" "$docker" --host "unix://$d/sock" "$@"; }
  n=0
  while ! by_docker version && kill -0 $dockerd_pid 2> /dev/null && [ $((n += 1)) -lt 60 ]; do sleep .5; done
  if ! by_docker version; then
    skip "docker: its daemon does not start here: $(tail -n 1 "$d/dockerd.log")"
  else
    version_of_docker=$(sed -n 's/^ *Version: *//p' "$work/out" | head -n 1)
    tar -C "$work/c/rootfs" -cf "$d/image.tar" .
    by_docker import "$d/image.tar" nvc-test-gpu
    rm "$d/image.tar"
    # shellcheck disable=SC2046 # words
    set -- run --rm --network=none $(shared_proc) -e "NVIDIA_VISIBLE_DEVICES=$first" -e NVIDIA_DRIVER_CAPABILITIES=compute,utility \
      -e PATH=/usr/bin:/usr/sbin
    if by_docker "$@" nvc-test-gpu /usr/bin/busybox true; then
      by_docker "$@" --runtime=nvidia nvc-test-gpu /bin/sh /job
      judge_engine "docker $version_of_docker"
    else
      skip "docker: it cannot run a container here: $(tail -n 1 "$work/err")"
    fi
  fi
  kill $dockerd_pid 2> /dev/null
  wait $dockerd_pid 2> /dev/null
  kill $containerd_pid 2> /dev/null
  wait $containerd_pid 2> /dev/null
  # What they mounted ends with them, or is below $work.
  awk -v d="$d/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r | while read -r point; do umount "$point"; done
  if [ $etc_docker = hidden ]; then
    umount /etc/docker
  else
    rm -f /etc/docker/key.json
    rmdir /etc/docker 2> /dev/null
  fi
  rm -rf "$d"
}

test_engines() {
  title "Engines"
  [ "$containers_work" ] && [ "$first" ] && [ ! "$own_ldconfig" ] || { skip "engines: no container works here"; return; }
  group=/nvc-test-gpu-$$
  for engine in crun podman docker; do
    if time_left 90; then test_$engine; else skip "$engine: no time left"; fi
  done
  find /sys/fs/cgroup -depth -type d -path "*$group*" -exec rmdir {} \; 2> /dev/null
}
