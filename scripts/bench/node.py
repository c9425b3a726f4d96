#!/usr/bin/python3
"""Measures the driver for Kubernetes on the simulated driver, between a kubelet and an API server that are programs.

    scripts/bench/node.py [PROGRAMS [ROUNDS]]

PROGRAMS is the directory of the programs (target/release), ROUNDS the number of claims and of kubelet restarts (500).
Prints memory and time; fails if memory or descriptors of the driver and its query processes after all rounds are more
than 1.05 times those after the first tenth. Needs root and python3-grpcio (scripts/setup.sh tests).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import grpc

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
PROGRAMS = os.path.realpath(sys.argv[1] if len(sys.argv) > 1 else f"{HERE}/target/release")
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 500
DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
REGISTRATION = "/pluginregistration.Registration/"

if "NVC_BENCH_INSIDE" not in os.environ:
    os.environ["NVC_BENCH_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "-m", "--propagation", "private", sys.executable, *sys.argv])


def field(number, value):
    """Encodes a field of protobuf that is shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def call(channel, path, message):
    raw = {"request_serializer": bytes, "response_deserializer": bytes}
    return channel.unary_unary(path, **raw)(message, timeout=45)


def claimed(uid, name):
    return field(1, field(1, b"ns") + field(2, uid.encode()) + field(3, name.encode()))


def milliseconds(since):
    return (time.monotonic() - since) * 1000


def family(pid):
    """The process and its descendants."""
    found = [pid]
    for one in found:
        for task in os.listdir(f"/proc/{one}/task"):
            found += [int(child) for child in open(f"/proc/{one}/task/{task}/children").read().split()]
    return found


def used(pid):
    """MiB of their own and shared memory in proportion, and descriptors; the least of some moments."""
    moments = []
    for _ in range(20):
        try:
            kib = descriptors = 0
            for one in family(pid):
                rollup = open(f"/proc/{one}/smaps_rollup").read()
                kib += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
                descriptors += len(os.listdir(f"/proc/{one}/fd"))
            moments.append((kib / 1024, descriptors))
        except (FileNotFoundError, ProcessLookupError):
            pass  # a query has ended
        time.sleep(0.1)
    return min(moments)


def socket_in(directory, daemon):
    while True:
        for name in os.listdir(directory) if os.path.isdir(directory) else []:
            if name.endswith(".sock"):
                return f"{directory}/{name}"
        if daemon.poll() is not None:
            sys.exit(f"the driver has ended: {open(work + '/log').read()}")
        time.sleep(0.0005)


def percentiles(what, times):
    cuts = statistics.quantiles(times, n=100)
    print(f"{what}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, of {len(times)}")


def compare(what, first, last):
    fine = all(after <= 1.05 * before for before, after in zip(first, last))
    print(f"{what}: {first[0]:.1f} MiB and {first[1]} descriptors, then {last[0]:.1f} MiB and {last[1]}{'' if fine else ', TOO MANY'}")
    return fine


def main():
    driver = f"{work}/driver"
    for simdriver in (f"{PROGRAMS}/nvc-simdriver", f"{HERE}/target/debug/nvc-simdriver"):
        if os.path.exists(simdriver):
            break
    subprocess.run([simdriver, "build", driver], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "--bind", f"{driver}/proc/devices", "/proc/devices"], check=True)
    script = f"{HERE}/tests/tests/kubelet/apiserver.py"
    pipe = subprocess.PIPE
    api = subprocess.Popen([sys.executable, "-B", script], stdin=pipe, stdout=pipe, text=True)
    port = api.stdout.readline().strip()

    def tell(**command):
        api.stdin.write(json.dumps(command) + "\n")
        api.stdin.flush()
        return json.loads(api.stdout.readline())

    tell(put="/api/v1/nodes/n1", object={"metadata": {"name": "n1"}})
    with open(f"{work}/kubeconfig", "w") as file:
        json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                   "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}], "users": [{"name": "x", "user": {}}]}, file)
    queries = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([f"{PROGRAMS}/nvidia-container-cli", f"--root={driver}", "info"], check=True, stdout=subprocess.DEVNULL)
        queries.append(milliseconds(begin))
    log = open(f"{work}/log", "w")
    begin = time.monotonic()
    daemon = subprocess.Popen(
        [f"{PROGRAMS}/gpu-kubelet-plugin", "--node-name=n1", f"--container-driver-root={driver}", f"--nvidia-driver-root={driver}",
         f"--cdi-root={work}/cdi", f"--kubeconfig={work}/kubeconfig", f"--kubelet-registrar-directory-path={work}/registry",
         f"--kubelet-plugins-directory-path={work}/plugins"], stderr=log)
    try:
        registry = socket_in(f"{work}/registry", daemon)
        ready = milliseconds(begin)
        print(f"sockets ready after {ready:.0f} ms; nvidia-container-cli info takes {statistics.median(queries):.0f} ms")
        service = socket_in(f"{work}/plugins/gpu.nvidia.com", daemon)
        fine = rounds(tell, daemon.pid, registry, service)
        print(f"slice back after {back(tell):.0f} ms")
    finally:
        daemon.terminate()
        daemon.wait()
        api.kill()
    if not fine:
        sys.exit(1)


def back(tell):
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    for thing in tell(list=slices):
        tell(remove=f"{slices}/{thing['metadata']['name']}")
    begin = time.monotonic()
    while not tell(list=slices):
        time.sleep(0.001)
    return milliseconds(begin)


def restart(registry, service):
    """What a kubelet that starts does."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    # The kubelet has the socket's path there.
    path = [("grpc.default_authority", registry.replace("/", "%2F"))]
    with grpc.insecure_channel(f"unix:{registry}", own + path) as channel:
        call(channel, REGISTRATION + "GetInfo", b"")
        call(channel, REGISTRATION + "NotifyRegistrationStatus", bytes([1 << 3, 1]))
    with grpc.insecure_channel(f"unix:{service}", own + [("grpc.default_authority", "localhost")]) as channel:
        call(channel, DRA + "NodePrepareResources", b"")


def rounds(tell, pid, registry, service):
    restart(registry, service)
    channel = grpc.insecure_channel(f"unix:{service}", [("grpc.default_authority", "localhost")])
    times, first = [], None
    for number in range(ROUNDS):
        uid, name = f"00000000-0000-4000-8000-{number:012}", f"c{number}"
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}
        path = f"/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}"
        tell(put=path, object={"metadata": {"name": name, "uid": uid, "creationTimestamp": "2036-01-01T00:00:00Z"}, "spec": {},
                               "status": {"allocation": {"devices": {"results": [result]}}}})
        begin = time.monotonic()
        answer = call(channel, DRA + "NodePrepareResources", claimed(uid, name))
        times.append(milliseconds(begin))
        if b"k8s.gpu.nvidia.com/claim=" not in answer:
            sys.exit(f"{name}: {answer}")
        call(channel, DRA + "NodeUnprepareResources", claimed(uid, name))
        tell(remove=path)
        if number + 1 == max(1, ROUNDS // 10):
            first = used(pid)
    percentiles("Prepare", times)
    fine = compare(f"{ROUNDS} claims", first, used(pid))
    for number in range(ROUNDS):
        restart(registry, service)
        if number + 1 == max(1, ROUNDS // 10):
            first = used(pid)
    return compare(f"{ROUNDS} kubelet restarts", first, used(pid)) and fine


# No driver may be below a directory of all users.
with tempfile.TemporaryDirectory(dir="/var/lib", prefix="nvc-bench-") as work:
    main()
