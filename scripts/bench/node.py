#!/usr/bin/python3
"""Measures the driver for Kubernetes on the simulated driver, between a kubelet and an API server that are programs.

    scripts/bench/node.py [PROGRAMS [ROUNDS]]

PROGRAMS is the directory of the programs (target/release), ROUNDS the number of claims, of kubelet restarts, of XIDs and
of MIG changes (500). Prints memory and time; fails if memory or descriptors of the driver and its query processes after
all rounds are more than 1.05 times those after the first tenth. Then shows a machine of 16 GPUs with 7 MIG devices each.
Needs root and python3-grpcio (scripts/setup.sh tests).
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
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
# Tasks that the driver repeats have run then: the longest interval is five seconds.
WARM = 12

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


def built(name, *options):
    """Makes a simulated driver."""
    driver = f"{work}/{name}"
    for simdriver in (f"{PROGRAMS}/nvc-simdriver", f"{HERE}/target/debug/nvc-simdriver"):
        if os.path.exists(simdriver):
            break
    subprocess.run([simdriver, "build", driver, *options], check=True, stdout=subprocess.DEVNULL)
    open(f"{driver}/etc/nvidia-sim/events", "w").close()
    return driver


class Node:
    """A node of a name: its driver's process, its sockets, and the slices that it has published."""

    def __init__(self, tell, port, name, driver):
        self.tell, self.name, self.driver = tell, name, driver
        directory = f"{work}/{name}"
        os.mkdir(directory)
        tell(put=f"/api/v1/nodes/{name}", object={"metadata": {"name": name}})
        with open(f"{directory}/kubeconfig", "w") as file:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                       "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}], "users": [{"name": "x", "user": {}}]}, file)
        # As in a container that was not given the kubelet's list of pods: there is no kubelet that would answer.
        plugins = f"{directory}/plugins"
        os.mkdir(plugins)
        subprocess.run(["mount", "--bind", plugins, plugins], check=True)
        self.begin = time.monotonic()
        self.daemon = subprocess.Popen(
            [f"{PROGRAMS}/gpu-kubelet-plugin", f"--node-name={name}", f"--container-driver-root={driver}", f"--nvidia-driver-root={driver}",
             f"--cdi-root={directory}/cdi", f"--kubeconfig={directory}/kubeconfig", f"--kubelet-registrar-directory-path={directory}/registry",
             f"--kubelet-plugins-directory-path={plugins}"], stderr=open(f"{work}/log", "a"))
        self.registry = socket_in(f"{directory}/registry", self.daemon)
        self.ready = milliseconds(self.begin)
        self.service = socket_in(f"{plugins}/gpu.nvidia.com", self.daemon)
        subprocess.run(["umount", "-l", plugins], check=True)
        restart(self.registry, self.service)

    def slices(self):
        return [one["spec"] for one in self.tell(list=SLICES) if one["spec"]["nodeName"] == self.name]

    def devices(self):
        return [device for one in self.slices() for device in one.get("devices") or []]

    def until(self, is_there):
        while not is_there():
            if self.daemon.poll() is not None:
                sys.exit(f"the driver has ended: {open(work + '/log').read()}")
            time.sleep(0.002)

    def event(self, line):
        with open(f"{self.driver}/etc/nvidia-sim/events", "a") as file:
            file.write(line + "\n")

    def end(self):
        self.daemon.terminate()
        self.daemon.wait()


def main():
    driver = built("driver")
    subprocess.run(["mount", "--bind", f"{driver}/proc/devices", "/proc/devices"], check=True)
    script = f"{HERE}/tests/tests/kubelet/apiserver.py"
    pipe = subprocess.PIPE
    api = subprocess.Popen([sys.executable, "-B", script], stdin=pipe, stdout=pipe, text=True)
    port = api.stdout.readline().strip()

    def tell(**command):
        api.stdin.write(json.dumps(command) + "\n")
        api.stdin.flush()
        return json.loads(api.stdout.readline())

    queries = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([f"{PROGRAMS}/nvidia-container-cli", f"--root={driver}", "info"], check=True, stdout=subprocess.DEVNULL)
        queries.append(milliseconds(begin))
    node = Node(tell, port, "n1", driver)
    try:
        print(f"sockets ready after {node.ready:.0f} ms; nvidia-container-cli info takes {statistics.median(queries):.0f} ms")
        node.until(node.devices)
        print(f"slice back after {back(node):.0f} ms")
        time.sleep(WARM)
        fine = all([claims(node), restarts(node), xids(node), migs(node)])
    finally:
        node.end()
    large = Node(tell, port, "n2", built("large", "--size", "16", "7"))
    try:
        large.until(lambda: len(large.devices()) == 112)
        sizes = [len(one["devices"]) for one in large.slices()]
        print(f"16 GPUs with 7 MIG devices: slices of {sizes} devices after {milliseconds(large.begin):.0f} ms, {used(large.daemon.pid)[0]:.1f} MiB")
    finally:
        large.end()
        api.kill()
    if not fine:
        sys.exit(1)


def back(node):
    for one in node.tell(list=SLICES):
        node.tell(remove=f"{SLICES}/{one['metadata']['name']}")
    begin = time.monotonic()
    node.until(node.slices)
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


def repeated(what, node, once):
    """Does something in all rounds; returns true if the driver has not grown after the first tenth."""
    moments = []
    for number in range(ROUNDS):
        once(number)
        if number + 1 in (max(1, ROUNDS // 10), ROUNDS):
            # Threads without work end after ten seconds.
            time.sleep(WARM)
            moments.append(used(node.daemon.pid))
    return compare(f"{ROUNDS} {what}", *moments)


def claims(node):
    channel = grpc.insecure_channel(f"unix:{node.service}", [("grpc.default_authority", "localhost")])
    times = []

    def once(number):
        uid, name = f"00000000-0000-4000-8000-{number:012}", f"c{number}"
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": node.name, "device": "gpu-0"}
        path = f"/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}"
        node.tell(put=path, object={"metadata": {"name": name, "uid": uid, "creationTimestamp": "2036-01-01T00:00:00Z"}, "spec": {},
                                    "status": {"allocation": {"devices": {"results": [result]}}}})
        begin = time.monotonic()
        answer = call(channel, DRA + "NodePrepareResources", claimed(uid, name))
        times.append(milliseconds(begin))
        if b"k8s.gpu.nvidia.com/claim=" not in answer:
            sys.exit(f"{name}: {answer}")
        call(channel, DRA + "NodeUnprepareResources", claimed(uid, name))
        node.tell(remove=path)

    fine = repeated("claims", node, once)
    percentiles("Prepare", times)
    return fine


def restarts(node):
    return repeated("kubelet restarts", node, lambda _: restart(node.registry, node.service))


def xids(node):
    """Errors that do not lose the GPU: each one makes the driver look at it."""

    def once(number):
        node.event(f"xid gpu={uuid} code={100 + number % 2}")
        node.until(lambda: any(device.get("taints") for device in node.devices()))
        time.sleep(0.05)

    uuid = node.devices()[0]["attributes"]["uuid"]["string"]
    return repeated("XIDs", node, once)


def migs(node):
    """The last MIG device goes, comes, goes."""
    profile = f"{node.driver}/etc/nvidia-sim/profile"
    lines = open(profile).read().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("mig "))
    number = len(node.devices())
    uuid = next(line.split("uuid=")[1].split()[0] for line in lines if line.startswith("gpu minor=1 "))
    times = []

    def once(number_of_round):
        less = 1 - number_of_round % 2
        with open(profile + ".new", "w") as file:
            file.write("\n".join(lines[:last] + lines[last + less:]) + "\n")
        os.rename(profile + ".new", profile)
        begin = time.monotonic()
        node.event(f"mig gpu={uuid}")
        node.until(lambda: len(node.devices()) == number - less)
        times.append(milliseconds(begin))

    fine = repeated("MIG changes", node, once)
    percentiles("a MIG change is published", times)
    return fine


# No driver may be below a directory of all users.
with tempfile.TemporaryDirectory(dir="/var/lib", prefix="nvc-bench-") as work:
    main()
