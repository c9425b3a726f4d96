//! Tests containers with GPUs: by the driver volume, and by newer engines' options.

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::Test;
use nvc_testkit::machine::Scratch;
use nvc_testkit::{cli, files};

use crate::world::run;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Command("script")];
        at_a_terminal_a_line_says_that_there_is_no_gpu];
    tests.extend(
        nvc_testkit::tests![&[Root, Command("dockerd"), Command("docker")];
        containers_get_the_gpus_that_they_ask_for,
        the_volume_is_read_only_and_stays_until_it_is_removed,
        other_volumes_are_not_the_plugins,
        a_plugin_that_does_not_answer_is_named,
        a_remote_plugin_is_asked,
        an_engine_with_the_runtime_gets_no_volume,
        questions_that_were_not_needed_end,
        the_unified_memory_driver_is_loaded_if_necessary,
        a_node_that_is_another_device_is_not_named,
        a_dry_run_explains_itself],
    );
    tests
}

/// The GPUs that `nvidia-smi -L` lists.
const LISTS: &str = r#"
gpus() { grep '^GPU'; }
both='GPU 0: NVIDIA L4 (simulated) (UUID: GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10)
GPU 1: NVIDIA H100 PCIe (simulated) (UUID: GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21)'
second='GPU 0: NVIDIA H100 PCIe (simulated) (UUID: GPU-9e0b7d54-2c3f-4b18-a6d9-7f1e8c4a5b21)'
"#;

fn with_lists(script: &str) -> String {
    run(&format!("{LISTS}\n{script}"))
}

fn containers_get_the_gpus_that_they_ask_for() {
    with_lists(
        r#"
        start_docker; import_images; start_plugin
        same all "$both" "$(nvidia-docker run --rm cuda nvidia-smi -L | gpus)"
        same index "$second" "$(NV_GPU=1 nvidia-docker run --rm cuda nvidia-smi -L | gpus)"
        same uuid "$second" "$(NV_GPU=GPU-9e0b nvidia-docker run --rm cuda nvidia-smi -L | gpus)"
        same created c1 "$(nvidia-docker create --name c1 cuda nvidia-smi -L > /dev/null; docker inspect -f '{{slice .Name 1}}' c1)"
        same started "$both" "$(nvidia-docker start -a c1 | gpus)"
        has ps c1 "$(nvidia-docker ps -a)"
        has version "NVIDIA Docker: " "$(nvidia-docker version)"
        same status 7 "$(nvidia-docker run --rm cuda sh -c 'exit 7' || echo $?)"
        refused=$(NV_GPU=9 nvidia-docker run --rm cuda true 2>&1) && exit 1
        has refused 'Error: invalid device: 9' "$refused"
        refused=$(nvidia-docker run --rm plain nvidia-smi -L 2>&1) && exit 1
        has unchanged nvidia-smi "$refused"
        too_new=$(docker import -c 'LABEL com.nvidia.volumes.needed=nvidia_driver' \
          -c 'LABEL com.nvidia.cuda.version=99.1' /tmp/image.tar new)
        refused=$(nvidia-docker run --rm new true 2>&1) && exit 1
        has 'too new' 'unsupported CUDA version: driver 12.8 < image 99.1' "$refused"
        "#,
    );
}

fn the_volume_is_read_only_and_stays_until_it_is_removed() {
    run(r#"
        start_docker; import_images; start_plugin
        volume=/var/lib/nvidia-docker/volumes/nvidia_driver/570.124.06
        mounts() { grep -c " $volume" /proc/self/mountinfo || true; }
        nvidia-docker run -d --name one cuda sleep 1000 > /dev/null
        [ "$(mounts)" -gt 20 ]
        nvidia-docker run -d --name two cuda sleep 1000 > /dev/null
        written=$(docker exec one sh -c ': > /usr/local/nvidia/bin/nvidia-smi' 2>&1) && exit 1
        has file 'Read-only file system' "$written"
        written=$(docker exec one sh -c ': > /usr/local/nvidia/bin/new' 2>&1) && exit 1
        has directory 'Read-only file system' "$written"
        # Also where the user asks for a volume that can be written.
        written=$(docker run --rm -v nvidia_driver_570.124.06:/n plain sh -c ': > /n/bin/nvidia-smi; : > /n/new' 2>&1) && exit 1
        has 'writable volume' 'Read-only file system' "$written"
        docker rm -f one two > /dev/null
        [ "$(mounts)" -gt 20 ]
        has listed nvidia_driver_570.124.06 "$(docker volume ls -q)"
        docker volume rm nvidia_driver_570.124.06 > /dev/null
        same unmounted 0 "$(mounts)"
        [ ! -e $volume ]
    "#);
}

/// By an engine with `--mount`, and by one before it.
fn other_volumes_are_not_the_plugins() {
    run(r#"
        start_docker; import_images; start_plugin
        docker import -c 'VOLUME /data' -c 'LABEL com.nvidia.volumes.needed=nvidia_driver' /tmp/image.tar with_volume > /dev/null
        for api in '' 1.29; do
          export DOCKER_API_VERSION=$api
          for line in '-v mine:/data cuda' '-v /data cuda' '--mount type=volume,source=mine,target=/data cuda' with_volume; do
            [ "$api" = '' ] || [[ $line != --mount* ]] || continue
            docker volume ls -q | xargs -r docker volume rm > /dev/null
            same "$api $line" /usr/local/nvidia/bin/nvidia-smi "$(nvidia-docker run $line sh -c 'ls -d /data > /dev/null && ls /usr/local/nvidia/bin/nvidia-smi')"
            same "$api $line: volumes" 'nvidia-docker nvidia_driver_570.124.06' "$(docker volume ls --format '{{.Driver}} {{.Name}}' | grep -v ^local)"
            docker ps -aq | xargs docker rm > /dev/null
          done
        done
        same 'with another driver' /data "$(DOCKER_API_VERSION='' nvidia-docker run --rm --volume-driver=local -v mine:/data cuda ls -d /data)"
        same log '' "$(grep -E 'mine|bad volume' /run/plugin.log || true)"
    "#);
}

fn a_plugin_that_does_not_answer_is_named() {
    run(r#"
        start_docker; import_images; start_plugin
        kill -9 $plugin_pid; wait $plugin_pid || true
        refuses() {
          said=$("${@:2}" nvidia-docker run --rm cuda true 2>&1) && exit 1
          has "$1" "nvidia-docker-plugin does not answer at /run/docker/plugins/nvidia-docker.sock: $why" "$said"
        }
        why='connection refused'
        refuses killed env
        # Docker is not asked anything.
        refuses 'nobody to ask' env NV_BACKEND=volume NV_DOCKER=/no/docker
        rm /run/docker/plugins/nvidia-docker.sock
        why='no such file or directory'
        refuses gone env
        # Another engine's plugin is elsewhere.
        same 'an address of its own' 1 "$(mkdir -p /etc/docker/plugins; : > /etc/docker/plugins/nvidia-docker.spec
          NV_BACKEND=volume NV_DOCKER=/no/docker nvidia-docker run cuda 2>&1 | grep -c 'failed to run docker command')"
    "#);
}

fn a_remote_plugin_is_asked() {
    with_lists(
        r#"
        start_docker -H tcp://127.0.0.1:2375 -H unix:///run/docker.sock; import_images; address=127.0.0.1:8080 start_plugin -l 127.0.0.1:8080
        export DOCKER_HOST=tcp://127.0.0.1:2375 NV_HOST=http://localhost:8080
        same remote "$second" "$(NV_GPU=1 nvidia-docker run --rm cuda nvidia-smi -L | gpus)"
        refused=$(NV_GPU=7 nvidia-docker run --rm cuda true 2>&1) && exit 1
        has refused 'invalid device: 7' "$refused"
        refused=$(NV_HOST=: nvidia-docker run --rm cuda true 2>&1) && exit 1
        has 'nobody there' 'is nvidia-docker-plugin running there' "$refused"
        # An answer that asks for more than devices and the driver's volume.
        line='{"VolumeDriver":"nvidia-docker","Volumes":["/:/host:rw"],"Devices":["/dev/nvidia0"]}'
        python3 - "$line" <<'END' &
import http.server, sys
class Evil(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (b'{"Version":{"Driver":"570.124.06","CUDA":"12.8"}}' if 'info' in self.path else sys.argv[1].encode())
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(('127.0.0.1', 9000), Evil).serve_forever()
END
        until_true 120 curl -fs http://127.0.0.1:9000/info
        refused=$(NV_HOST=http://127.0.0.1:9000 nvidia-docker run --rm cuda true 2>&1) && exit 1
        has evil 'asks for --volume=/:/host:rw, which is refused' "$refused"
        "#,
    );
}

fn an_engine_with_the_runtime_gets_no_volume() {
    run(r#"
        start_docker --add-runtime nvidia=/usr/sbin/runc; import_images
        nvidia-docker create --name c1 cuda true > /dev/null
        same runtime nvidia "$(docker inspect -f '{{.HostConfig.Runtime}}' c1)"
        has all NVIDIA_VISIBLE_DEVICES=all "$(docker inspect -f '{{.Config.Env}}' c1)"
        same volumes '[]' "$(docker inspect -f '{{.HostConfig.Binds}}{{.HostConfig.Devices}}' c1 | tr -d '\n' | sed 's/\[\]\[\]/[]/')"
        NV_GPU='1 GPU-51a2' nvidia-docker create --name c2 cuda true > /dev/null
        has chosen NVIDIA_VISIBLE_DEVICES=1,GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10 "$(docker inspect -f '{{.Config.Env}}' c2)"
        nvidia-docker create --name c3 modern true > /dev/null
        same 'by environment' nvidia "$(docker inspect -f '{{.HostConfig.Runtime}}' c3)"
        nvidia-docker create --name c4 plain true > /dev/null
        same plain runc "$(docker inspect -f '{{.HostConfig.Runtime}}' c4)"
        NV_GPU=0 nvidia-docker create --name c5 plain true > /dev/null
        same 'by NV_GPU' nvidia "$(docker inspect -f '{{.HostConfig.Runtime}}' c5)"
        nvidia-docker create --runtime=runc --name c6 cuda true > /dev/null
        same "the user's own" runc "$(docker inspect -f '{{.HostConfig.Runtime}}' c6)"
    "#);
}

/// The image's labels make the wrapper ask for the volume before it knows that the engine has a runtime.
fn questions_that_were_not_needed_end() {
    run(r#"
        start_docker --add-runtime nvidia=/usr/sbin/runc; import_images
        cat > /tmp/slow <<'END'
#!/bin/bash
case $1 in
  volume) echo $$ > /tmp/asking; mv /tmp/asking /tmp/asked; exec sleep 1000 ;;
  create) read -r children < /proc/$$/task/$$/children; echo "children: $children" > /tmp/children ;;
esac
exec docker "$@"
END
        chmod +x /tmp/slow
        NV_DOCKER=/tmp/slow timeout 300 nvidia-docker create --name c1 cuda true > /dev/null
        same runtime nvidia "$(docker inspect -f '{{.HostConfig.Runtime}}' c1)"
        [ ! -e /tmp/asked ] || [ ! -e "/proc/$(cat /tmp/asked)" ]
        same 'of docker' 'children: ' "$(cat /tmp/children)"
    "#);
}

fn the_unified_memory_driver_is_loaded_if_necessary() {
    run(r#"
        start_docker; import_images
        export NV_DRY_RUN=1
        printf '#!/bin/sh\necho "$@" >> /tmp/modprobe\n' > /usr/bin/nvidia-modprobe
        chmod +x /usr/bin/nvidia-modprobe
        has loaded nvidia_driver "$(nvidia-docker run cuda 2> /dev/null)"
        [ ! -e /tmp/modprobe ]
        rm /dev/nvidia-uvm-tools
        has 'no node' nvidia_driver "$(nvidia-docker run cuda 2> /dev/null)"
        same called '-u -c=0' "$(cat /tmp/modprobe)"
        mknod /dev/nvidia-uvm-tools c 1 3
        refused=$(nvidia-docker run cuda 2>&1) && exit 1
        has 'another node' 'invalid device node: /dev/nvidia-uvm-tools is 1:3' "$refused"
        same 'called again' 2 "$(wc -l < /tmp/modprobe)"
        rm /usr/bin/nvidia-modprobe
        refused=$(nvidia-docker run cuda 2>&1) && exit 1
        has refused 'Could not load UVM kernel module' "$refused"
    "#);
}

/// A container with the host's /dev may have replaced any node.
fn a_node_that_is_another_device_is_not_named() {
    run(r#"
        start_docker -H tcp://127.0.0.1:2375 -H unix:///run/docker.sock; import_images; start_plugin
        printf '#!/bin/sh\n' > /usr/bin/nvidia-modprobe
        chmod +x /usr/bin/nvidia-modprobe
        export NV_DRY_RUN=1 NV_GPU=0
        elsewhere() { DOCKER_HOST=tcp://127.0.0.1:2375 NV_HOST=http://localhost:3476 nvidia-docker run cuda; }
        # refuses WHAT PART
        refuses() {
          refused=$(nvidia-docker run cuda 2>&1) && exit 1
          has "$1: wrapper" "$2" "$refused"
          has "$1: way out" 'remove it' "$refused"
          refused=$(elsewhere 2>&1) && exit 1
          has "$1: remote" "$2" "$refused"
          for answer in cli cli/json; do
            same "$1: status" 400 "$(curl -s -o /tmp/answer -w '%{http_code}' "http://localhost:3476/docker/$answer?dev=0")"
            has "$1: plugin" "$2" "$(cat /tmp/answer)"
          done
        }
        accepts() {
          has "$1: wrapper" --device=/dev/nvidia0 "$(nvidia-docker run cuda 2> /dev/null)"
          has "$1: remote" --device=/dev/nvidia0 "$(elsewhere 2> /dev/null)"
        }
        accepts before
        for name in nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools; do
          mv /dev/$name /dev/kept
          mknod /dev/$name b 8 0
          refuses 'block device' "invalid device node: /dev/$name is the block device 8:0, and should be a character device"
          rm /dev/$name; mknod /dev/$name c 1 1
          refuses memory "invalid device node: /dev/$name is 1:1, and "
          rm /dev/$name; mknod /dev/disk b 8 0; ln -s disk /dev/$name
          refuses link "invalid device node: /dev/$name is the block device 8:0"
          rm /dev/$name /dev/disk; mkdir /dev/$name
          refuses directory "invalid device node: /dev/$name is not a character device"
          rmdir /dev/$name; mv /dev/kept /dev/$name
          accepts "after $name"
        done
        mv /dev/nvidia0 /dev/kept
        cp -a /dev/nvidia1 /dev/nvidia0
        refuses 'another GPU' 'invalid device node: /dev/nvidia0 is 195:1, and its minor number should be 0'
        rm /dev/nvidia0
        refused=$(nvidia-docker run cuda 2>&1) && exit 1
        has missing 'missing device node: /dev/nvidia0' "$refused"
        # Others' nodes do not matter.
        has 'other GPU' --device=/dev/nvidia1 "$(NV_GPU=1 nvidia-docker run cuda 2> /dev/null)"
    "#);
}

fn a_dry_run_explains_itself() {
    run(r#"
        start_docker; import_images
        export NV_DRY_RUN=1
        same volume "docker run --rm --device=/dev/nvidiactl --device=/dev/nvidia-uvm --device=/dev/nvidia-uvm-tools --device=/dev/nvidia0 --mount=type=volume,source=nvidia_driver_570.124.06,target=/usr/local/nvidia,readonly,volume-driver=nvidia-docker cuda 'a b'" \
          "$(NV_GPU=0 nvidia-docker run --rm cuda 'a b' 2> /tmp/why)"
        has old '--volume=nvidia_driver_570.124.06:/usr/local/nvidia:ro cuda' "$(DOCKER_API_VERSION=1.29 nvidia-docker run cuda 2> /tmp/old)"
        has 'old, before' 'docker volume create --driver=nvidia-docker --name=nvidia_driver_570.124.06' "$(cat /tmp/old)"
        has why 'back end volume: the image requests the volume nvidia_driver' "$(cat /tmp/why)"
        same gpus 'docker run --gpus=all modern' "$(nvidia-docker run modern 2> /tmp/why)"
        has why "back end gpus: the engine's interface is 1." "$(cat /tmp/why)"
        same device "docker run '--gpus=\"device=1\"' modern" "$(NV_GPU=1 nvidia-docker run modern 2> /dev/null)"
        same cdi 'docker run --device=nvidia.com/gpu=0 modern' "$(NV_BACKEND=cdi NV_GPU=0 nvidia-docker run modern 2> /tmp/why)"
        has why 'NV_BACKEND says so' "$(cat /tmp/why)"
        docker import -c 'ENV NVIDIA_REQUIRE_CUDA=cuda>=99.0' -c 'ENV CUDA_VERSION=99.0' /tmp/image.tar picky > /dev/null
        refused=$(NV_BACKEND=cdi nvidia-docker run picky 2>&1) && exit 1
        has picky 'unsatisfied condition: cuda>=99.0' "$refused"
        same 'on purpose' 'docker run -e NVIDIA_DISABLE_REQUIRE=1 --device=nvidia.com/gpu=all picky' \
          "$(NV_BACKEND=cdi nvidia-docker run -e NVIDIA_DISABLE_REQUIRE=1 picky 2> /dev/null)"
        same plain 'docker run plain' "$(nvidia-docker run plain 2> /tmp/why)"
        has why 'unchanged: NV_GPU is not set' "$(cat /tmp/why)"
        same dashes 'docker run --gpus=all -- modern -x' "$(nvidia-docker run -- modern -x 2> /dev/null)"
        same other 'docker ps -a' "$(nvidia-docker ps -a 2> /dev/null)"
        same 'with NV_HOST' 'docker ps' "$(NV_HOST=: nvidia-docker ps 2> /tmp/why)"
        has warning 'nvidia-docker | ' "$(cat /tmp/why)"
        has warning ' Warning: NV_HOST is set but DOCKER_HOST is not' "$(cat /tmp/why)"
        same 'with both' 'docker ps' "$(DOCKER_HOST=unix:///run/docker.sock NV_HOST=: nvidia-docker ps 2> /tmp/why)"
        same 'no warning' 0 "$(grep -c Warning /tmp/why)"
        same attached 'docker run -p80:80 --gpus=all modern x' "$(nvidia-docker run -p80:80 modern x 2> /dev/null)"
        same "the user's own" 'docker run --gpus 1 modern' "$(nvidia-docker run --gpus 1 modern 2> /dev/null)"
    "#);
}

/// Upstream writes nothing, and what is written to a pipe may be compared with it, or read by a program.
fn at_a_terminal_a_line_says_that_there_is_no_gpu() {
    const DOCKER: &str = r#"#!/bin/sh
case $1 in
version) echo "{\"Server\":{\"ApiVersion\":\"$API\"}}" ;;
info) echo '{}' ;;
inspect) echo '[{"Config":{"Env":["A=b"]}}]' ;;
*) echo "runs $*" ;;
esac
"#;
    let scratch = Scratch::new().unwrap();
    let docker = scratch.join("docker");
    files::file(&docker, DOCKER, 0o755).unwrap();
    let wrapper = cli::beside("nvidia-docker").unwrap();
    let said = |api: &str, line: &str| {
        let output = std::process::Command::new("script")
            .args(["-qec", line, "/dev/null"])
            .env("W", &wrapper)
            .env("NV_DOCKER", &docker)
            .env("API", api)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let note = |way: &str| format!(" Note: no GPU for plain, which requests none; {way} adds them");
    for (api, way) in [("1.50", "NV_GPU=all"), ("1.39", "NV_BACKEND=volume")] {
        let text = said(api, "$W run plain ls");
        assert!(text.contains(&note(way)), "{text}");
        assert!(text.contains("runs run plain ls"), "{text}");
    }
    for line in [
        "$W run plain ls 2>&1 | cat",
        "NV_GPU=all $W run plain ls",
        "NV_DRY_RUN=1 $W run plain ls",
        "$W run --gpus=all plain ls",
        "$W ps",
    ] {
        let text = said("1.50", line);
        assert!(!text.contains("Note:"), "{line}: {text}");
    }
}
