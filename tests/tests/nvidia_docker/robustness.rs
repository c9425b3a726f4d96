//! Tests that the plugin survives crashes, restarts, a new driver, a full disk, slow and many clients.

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::Test;

use crate::world::run;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = nvc_testkit::tests![&[Root, Command("dockerd"), Command("docker")];
        a_plugin_that_was_killed_goes_on,
        docker_may_be_restarted,
        the_driver_may_be_updated];
    tests.extend(nvc_testkit::tests![&[Root];
        two_plugins_do_not_meet,
        a_full_disk_harms_no_container,
        slow_clients_are_cut_off,
        many_clients_are_served,
        one_gpu_harms_no_other,
        other_sites_are_refused,
        an_unprivileged_user_with_one_capability_is_enough,
        systemd_may_open_the_sockets,
        with_systemds_sockets_no_driver_is_no_failure]);
    tests.extend(nvc_testkit::tests![&[Root, Command("cc")]; containers_cannot_trace_it]);
    tests
}

/// Requests that docker sends to the plugin.
const ASK: &str = r#"
socket=/run/docker/plugins/nvidia-docker.sock volume=/var/lib/nvidia-docker/volumes/nvidia_driver/570.124.06
ask() {
  curl -sS --unix-socket $socket -H 'Accept: application/vnd.docker.plugins.v1.2+json' \
    -d "{\"Name\":\"nvidia_driver_${3:-570.124.06}\",\"ID\":\"${2:-}\"}" "http://plugin/VolumeDriver.$1"
}
mounts() { grep -c " $volume" /proc/self/mountinfo || true; }
"#;

fn with_ask(script: &str) -> String {
    run(&format!("{ASK}\n{script}"))
}

fn a_plugin_that_was_killed_goes_on() {
    with_ask(
        r#"
        start_docker; import_images; start_plugin
        nvidia-docker run -d --name one cuda sleep 1000 > /dev/null
        nvidia-docker run -d --name two cuda sleep 1000 > /dev/null
        kill -9 $plugin_pid; wait $plugin_pid || true
        [ "$(mounts)" -gt 20 ]
        docker exec one nvidia-smi -L | grep -q ^GPU
        start_plugin
        docker rm -f one two > /dev/null
        docker volume rm nvidia_driver_570.124.06 > /dev/null
        same removed 0 "$(mounts)"
        # Killed in the middle of making the volume: what is there is not taken for whole.
        nvidia-docker run --rm cuda sh -c :
        kill -9 $plugin_pid; wait $plugin_pid || true
        umount -l $volume
        mount -t tmpfs half $volume
        start_plugin
        nvidia-docker run --rm cuda nvidia-smi -L | grep -q ^GPU
        same half '' "$(grep half /proc/self/mountinfo || true)"
        # A plugin that is stopped in order leaves no socket behind.
        kill $plugin_pid; wait $plugin_pid
        [ ! -e $socket ]
        "#,
    );
}

fn docker_may_be_restarted() {
    with_ask(
        r#"
        start_docker; import_images; start_plugin
        nvidia-docker run -d --name one cuda sleep 1000 > /dev/null
        kill $docker_pid; wait $docker_pid || true
        start_docker
        docker start one > /dev/null
        has again GPU- "$(docker exec one nvidia-smi -L)"
        nvidia-docker run --rm cuda nvidia-smi -L | grep -q ^GPU
        "#,
    );
}

fn the_driver_may_be_updated() {
    with_ask(
        r#"
        start_docker; import_images; start_plugin
        nvidia-docker run -d --name one cuda sleep 1000 > /dev/null
        # Another version: the files have other names, NVML says another number.
        sed -i 's/^driver=.*/driver=580.10/' /etc/nvidia-sim/profile
        for library in /usr/local/nvidia/lib64/*.so.570.124.06; do mv "$library" "${library%570.124.06}580.10"; done
        ldconfig /usr/local/nvidia/lib64 2> /dev/null
        comes info 580.10 curl -s http://localhost:3476/gpu/info
        comes cli nvidia_driver_580.10 curl -s http://localhost:3476/docker/cli
        docker exec one sh -c 'cat /usr/local/nvidia/lib64/libcuda.so.1' > /dev/null
        has new GPU- "$(nvidia-docker run --rm cuda nvidia-smi -L)"
        same 'the old volume' 0 "$(mounts)"
        docker exec one sh -c 'cat /usr/local/nvidia/lib64/libcuda.so.1' > /dev/null
        docker stop -t 0 one > /dev/null
        refused=$(docker start one 2>&1) && exit 1
        has old 'the driver is 580.10 now' "$refused"
        "#,
    );
}

fn two_plugins_do_not_meet() {
    with_ask(
        r#"
        start_plugin
        has first '"Err":null' "$(ask Create)"
        second=$(nvidia-docker-plugin -l localhost:4000 2>&1) && exit 1
        has volumes 'another nvidia-docker-plugin keeps the volumes' "$second"
        second=$(nvidia-docker-plugin -l localhost:4000 -d /var/lib/other 2>&1) && exit 1
        has socket 'another plugin answers there' "$second"
        second=$(nvidia-docker-plugin -d /var/lib/other -s /run/other 2>&1) && exit 1
        has port 'listen tcp 127.0.0.1:3476: ' "$second"
        has 'first still' '"Err":null' "$(ask Create)"
        "#,
    );
}

fn a_full_disk_harms_no_container() {
    with_ask(
        r#"
        mkdir -p /var/lib/nvidia-docker
        mount -t tmpfs -o size=64k,nr_inodes=12 tmpfs /var/lib/nvidia-docker
        start_plugin
        has create '"Err":null' "$(ask Create)"
        dd if=/dev/zero of=/var/lib/nvidia-docker/fill bs=4k 2> /dev/null || true
        has mount '"Err":null' "$(ask Mount one)"
        [ -s $volume/bin/nvidia-smi ]
        has unmount '"Err":null' "$(ask Unmount one)"
        has remove '"Err":null' "$(ask Remove)"
        same left 0 "$(mounts)"
        i=0; while touch /var/lib/nvidia-docker/file$i 2> /dev/null; do i=$((i + 1)); done
        has 'no room' 'internal error' "$(ask Create)"
        rm /var/lib/nvidia-docker/file*
        has 'room again' '"Err":null' "$(ask Create)"
        curl -fsS http://localhost:3476/healthz
        "#,
    );
}

fn slow_clients_are_cut_off() {
    with_ask(
        r#"
        start_plugin
        slowly() {
          local start=$SECONDS byte
          trap '' PIPE
          exec 3<>/dev/tcp/localhost/3476
          for byte in G E T ' ' / g p u / i n f o ' ' H T T P; do
            printf %s "$byte" >&3 2> /dev/null || break
            sleep 1
          done
          exec 3>&-
          echo $((SECONDS - start))
        }
        slowly > /tmp/slow 2> /dev/null &
        slow=$!
        curl -fsS -m 60 http://localhost:3476/gpu/status/json > /dev/null
        wait $slow
        # Eighteen bytes would take as many seconds.
        [ "$(cat /tmp/slow)" -lt 18 ]
        # A head and a body that are too long.
        same head 431 "$(curl -s -o /dev/null -w '%{http_code}' -H "X: $(head -c 60000 /dev/zero | tr '\0' x)" http://localhost:3476/gpu/info)"
        head -c 200000 /dev/zero > /tmp/long
        same body 413 "$(curl -s -o /dev/null -w '%{http_code}' --unix-socket $socket -H 'Expect:' \
          -H 'Accept: application/vnd.docker.plugins.v1.2+json' --data-binary @/tmp/long http://plugin/VolumeDriver.Create)"
        curl -fsS http://localhost:3476/healthz
        "#,
    );
}

fn many_clients_are_served() {
    with_ask(
        r#"
        start_plugin
        ulimit -n 4096
        # Idle ones do not keep others out.
        for i in $(seq 100); do exec {fd}<>/dev/tcp/localhost/3476; done
        curl --parallel --parallel-immediate --parallel-max 500 -s -m 300 -w '%{http_code}\n' -o /dev/null \
          'http://localhost:3476/gpu/status/json?[1-500]' > /tmp/codes
        same count 500 "$(wc -l < /tmp/codes)"
        same answers 500 "$(grep -c '^200$' /tmp/codes)"
        # Too many get 503, and docker is not kept out. The plugin closes idle connections after five seconds, so a
        # slow machine may need another try.
        cat > /tmp/crowd.py <<'END'
import socket, sys
crowd = [socket.create_connection(('localhost', 3476)) for _ in range(700)]
def answer(s, request):
    s.settimeout(60)
    try:
        s.sendall(request)
        return s.recv(4096)
    except OSError as error:
        return str(error).encode()
one = socket.create_connection(('localhost', 3476))
docker = socket.socket(socket.AF_UNIX)
docker.connect(sys.argv[1])
body = b'{"Name":"nvidia_driver_570.124.06"}'
head = b'POST /VolumeDriver.Create HTTP/1.1\r\nHost: plugin\r\nAccept: application/vnd.docker.plugins.v1.2+json\r\n'
refused = answer(one, b'GET /gpu/info HTTP/1.1\r\nHost: localhost\r\n\r\n')
created = answer(docker, head + b'Content-Length: %d\r\n\r\n' % len(body) + body)
print(refused, created)
sys.exit(not (b' 503 ' in refused and b'"Err":null' in created))
END
        tries=0
        until python3 /tmp/crowd.py $socket > /tmp/crowd; do
          tries=$((tries + 1))
          [ $tries -lt 20 ] || { echo "world: 700 idle connections: $(cat /tmp/crowd)" >&2; exit 1; }
        done
        comes 'again there' 200 curl -s -o /dev/null -w '%{http_code}' http://localhost:3476/gpu/info
        "#,
    );
}

fn one_gpu_harms_no_other() {
    with_ask(
        r#"
        start_plugin
        power() { curl -s http://localhost:3476/gpu/status/json | python3 -c 'import json, sys; print([d["Power"] for d in json.load(sys.stdin)["Devices"]])'; }
        set_readings() { printf '%s\n' "$@" > /etc/nvidia-sim/readings; }
        comes both '[61, 61]' power
        set_readings 'temperature.0=!15'
        comes lost '[None, 61]' power
        comes named 'nvml: GPU is lost' curl -s http://localhost:3476/v2
        comes metric 'nvidia_gpu_up{gpu="0",uuid="GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10",model="NVIDIA L4 (simulated)"} 0' \
          curl -s http://localhost:3476/metrics
        set_readings 'power.1=crash'
        comes crashed '[61, None]' power
        set_readings 'power.0=hang'
        comes hangs '[None, 61]' power
        set_readings 'power=70000'
        comes 'well again' '[70, 70]' power
        set_readings 'eccl1.1=!3' 'eccl2.1=!3' 'eccmem.1=2' 'eccsram.1=3'
        comes 'errors of SRAM' '{"L1Cache":null,"L2Cache":null,"Global":null,"SRAM":3,"DRAM":2}' curl -s http://localhost:3476/gpu/status/json
        comes 'and of caches' '"ECCErrors":{"L1Cache":0,"L2Cache":0,"Global":0}' curl -s http://localhost:3476/gpu/status/json
        set_readings 'processes.1=1:104857600' 'process.1=/bin/sh'
        comes processes '"Processes":[{"PID":1,"Name":"/bin/sh","MemoryUsed":100}]' curl -s http://localhost:3476/gpu/status/json
        "#,
    );
}

fn other_sites_are_refused() {
    with_ask(
        r#"
        start_plugin -allow-host node7.example.org
        code() { curl -s -o /dev/null -w '%{http_code}' "$@" http://localhost:3476/gpu/info; }
        same plain 200 "$(code)"
        same rebound 403 "$(code -H 'Host: evil.example.org')"
        same allowed 200 "$(code -H 'Host: node7.example.org')"
        same origin 403 "$(code -H 'Origin: http://evil.example.org')"
        same own 200 "$(code -H "Host: $(hostname)")"
        # As a Go program.
        same wrapper 200 "$(code -H 'Host: plugin' -H Accept: -A Go-http-client/1.1 -H 'Accept-Encoding: gzip')"
        # As a browser sends it by http to its own site: neither Origin nor Sec-Fetch-Site.
        same page 403 "$(code -H 'Host: plugin:3476' -A Mozilla/5.0 -H 'Accept: */*' -H 'Accept-Language: en' --compressed)"
        same network 403 "$(code -H 'Host: plugin:3476' -H Accept: -H 'Origin: http://plugin:3476')"
        same browser 403 "$(code -H 'Host: plugin' -H Accept: -H 'Sec-Fetch-Site: same-origin')"
        "#,
    );
}

fn an_unprivileged_user_with_one_capability_is_enough() {
    with_ask(
        r#"
        mkdir -p /run/docker/plugins /var/lib/nvidia-docker
        chown 65534:65534 /run/docker/plugins /var/lib/nvidia-docker
        setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+sys_admin --ambient-caps=-all,+sys_admin \
          --bounding-set=-all,+sys_admin --no-new-privs nvidia-docker-plugin -no-modprobe > /run/plugin.log 2>&1 &
        plugin_pid=$!
        until_true 120 curl -fsS http://localhost:3476/healthz || { cat /run/plugin.log; exit 1; }
        # Only the thread that mounts has it.
        grep -h CapEff /proc/$plugin_pid/task/*/status | sort | uniq -c > /tmp/caps
        same holders 1 "$(grep -c 0000000000200000 /tmp/caps)"
        same number 1 "$(awk '/0000000000200000/ { print $1 }' /tmp/caps)"
        same main 0000000000000000 "$(awk '/CapEff/ { print $2 }' /proc/$plugin_pid/status)"
        has create '"Err":null' "$(ask Create)"
        has mount '"Err":null' "$(ask Mount one)"
        [ -s $volume/bin/nvidia-smi ]
        has remove '"Err":null' "$(ask Remove)"
        same left 0 "$(mounts)"
        "#,
    );
}

/// A container in the host's pid namespace, with docker's default capabilities or as the plugin's user. Threads without
/// capabilities would give it the host's files and the memory of the thread that mounts.
fn containers_cannot_trace_it() {
    // The script contains the source, because it may not see the repository: /tmp is hidden there.
    let tracer = include_str!("../../c/tracer.c");
    let script = r#"
        cc -O1 -o /run/tracer -x c - <<'END_OF_SOURCE'
TRACER
END_OF_SOURCE
        traced() {
          /run/tracer "$@" > /run/traced 2> /run/plugin.log &
          until_true 120 curl -fsS http://localhost:3476/healthz || { cat /run/plugin.log; exit 1; }
          curl -fsS http://localhost:3476/gpu/status > /dev/null
          has create '"Err":null' "$(ask Create)"
          has mount '"Err":null' "$(ask Mount one)"
          has remove '"Err":null' "$(ask Remove)"
          kill "$(cat /proc/$!/task/$!/children)"
          wait $!
          has seen 'saw nvidia-docker-p' "$(cat /run/traced)"
          same 'what it may' '' "$(grep ^may /run/traced || true)"
        }
        traced 0 nvidia-docker-plugin
        # As it is installed: its NVML process, which has no capabilities, would otherwise be open from exec on.
        chmod 711 /usr/bin/nvidia-docker-plugin
        chmod 755 /run/docker
        chown -R 65534:65534 /run/docker/plugins /var/lib/nvidia-docker
        traced 65534 setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+sys_admin \
          --ambient-caps=-all,+sys_admin --bounding-set=-all,+sys_admin --no-new-privs nvidia-docker-plugin -no-modprobe
        "#;
    with_ask(&script.replace("TRACER", tracer));
}

/// Starts the plugin as systemd does.
const START_AS_SYSTEMD: &str = r#"
start_as_systemd() {
mkdir -p /run/docker/plugins
python3 - > /run/plugin.log 2>&1 <<'END' &
import os, socket
tcp = socket.create_server(('127.0.0.1', 3476))
unix = socket.socket(socket.AF_UNIX)
unix.bind('/run/docker/plugins/nvidia-docker.sock')
unix.listen(16)
for wanted, s in ((3, unix), (4, tcp)):
    os.dup2(os.dup(os.dup(s.fileno())), wanted + 20)
for wanted in (3, 4):
    os.dup2(wanted + 20, wanted, inheritable=True)
os.environ.update(LISTEN_FDS='2', LISTEN_PID=str(os.getpid()))
os.execvp('nvidia-docker-plugin', ['nvidia-docker-plugin', '-no-modprobe'])
END
plugin_pid=$!
until_true 120 curl -sS http://localhost:3476/healthz || { cat /run/plugin.log; exit 1; }
}
"#;

fn systemd_may_open_the_sockets() {
    with_ask(&format!(
        r#"{START_AS_SYSTEMD}
        start_as_systemd
        has health ok "$(curl -fsS http://localhost:3476/healthz)"
        has volumes '"Err":null' "$(ask Create)"
        kill $plugin_pid; wait $plugin_pid
        # The sockets are systemd's.
        [ -S $socket ]
        "#
    ));
}

/// As on a machine that has its driver later: after a few failed starts, systemd would give the sockets up.
fn with_systemds_sockets_no_driver_is_no_failure() {
    with_ask(&format!(
        r#"{START_AS_SYSTEMD}
        find /usr -name 'libnvidia-ml.so.*' -delete
        start_as_systemd
        has health 'could not load NVML library' "$(curl -sS http://localhost:3476/healthz)"
        same status 503 "$(curl -sS -o /dev/null -w '%{{http_code}}' http://localhost:3476/healthz)"
        has volume 'internal error, check logs' "$(ask Create)"
        has volumes '"Err":null' "$(ask List)"
        # It ends by itself, without an error.
        wait $plugin_pid
        has log 'could not load NVML library' "$(cat /run/plugin.log)"
        "#
    ));
}
