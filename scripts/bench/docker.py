"""Measures for scripts/bench/docker.sh: `docker.py wrapper RUNS PLUGIN` and `docker.py plugin RATE SECONDS PLUGIN`."""

import http.client
import os
import statistics
import subprocess
import sys
import threading
import time

BENCH = "/srv/image/bench"
RECORDER = """#!/usr/bin/python3
import subprocess, sys
hash = 14695981039346656037
for byte in "".join(word + "\\n" for word in sys.argv[1:]).encode():
    hash = (hash ^ byte) * 1099511628211 % 2**64
open("/srv/bench/calls", "a").write(" ".join(sys.argv[1:])[:100] + "\\n")
done = subprocess.run(["/usr/bin/docker", *sys.argv[1:]], stdout=subprocess.PIPE)
open(f"/srv/answers/{hash:016x}", "wb").write(bytes([done.returncode]) + done.stdout)
sys.stdout.buffer.write(done.stdout)
sys.exit(done.returncode)
"""


def once(command):
    # With real-time priority: other programs of the machine have little effect.
    done = subprocess.run(["chrt", "-f", "50", f"{BENCH}/run", *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr}")
    return float(done.stdout.split()[0])


def wrapper(runs):
    """The wrapper's time beside docker's: the critical path of its calls of docker is subtracted."""
    os.makedirs("/srv/record")
    open("/srv/record/docker", "w").write(RECORDER)
    os.chmod("/srv/record/docker", 0o755)
    wrapper = "/usr/bin/nvidia-docker"
    commands = {"ps": [wrapper, "ps"], "run": [wrapper, "run", "--rm", "cuda", "nvidia-smi", "-L"]}
    os.environ["NV_DOCKER"] = "/srv/record/docker"
    calls = {}
    for name, command in commands.items():
        open("/srv/bench/calls", "w").close()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        calls[name] = open("/srv/bench/calls").read().splitlines()
    os.environ["NV_DOCKER"] = f"{BENCH}/replay"
    times = {name: [] for name in ["/bin/true", "docker", *commands]}
    for _ in range(runs):
        times["/bin/true"].append(once(["/bin/true"]))
        times["docker"].append(once([f"{BENCH}/replay", "ps"]))
        for name, command in commands.items():
            times[name].append(once(command))
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"# wrapper, {runs} alternating runs, load {os.getloadavg()[0]:.1f}; /bin/true {median['/bin/true']:.2f} ms, "
          f"a replayed call of docker {median['docker']:.2f} ms")
    for name in commands:
        # Questions are asked side by side, that for the volume beside the later ones; then docker is executed.
        steps = min(len(calls[name]), 2)
        added = [whole - steps * one for whole, one in zip(times[name], times["docker"])]
        quartiles = statistics.quantiles(added, n=4)
        print(f"nvidia-docker {name}: adds {statistics.median(added):.2f} ms (quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}), "
              f"target 3; {len(calls[name])} calls of docker:")
        for call in calls[name]:
            print(f"    docker {call}")


def plugin(rate, seconds, pid):
    """Latency of /gpu/status/json at a fixed rate on 20 connections, each request at its own time."""
    connections, latencies = 20, []

    def client(number):
        connection = http.client.HTTPConnection("localhost", 3476)
        begin = time.monotonic() + number / rate
        for turn in range(rate * seconds // connections):
            due = begin + turn * connections / rate
            time.sleep(max(0, due - time.monotonic()))
            sent = time.monotonic()
            connection.request("GET", "/gpu/status/json")
            answer = connection.getresponse()
            body = answer.read()
            latencies.append((time.monotonic() - sent) * 1e3)
            if answer.status != 200 or not body.startswith(b"{"):
                sys.exit(f"answer {answer.status}: {body[:100]}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cut = statistics.quantiles(latencies, n=1000)
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
    print(f"# plugin, 16 GPUs, {len(latencies)} requests, {rate} a second, load {os.getloadavg()[0]:.1f}, the client's time included")
    print(f"/gpu/status/json: p50 {cut[499]:.2f} ms, p90 {cut[899]:.2f} ms, p99 {cut[989]:.2f} ms, longest {max(latencies):.2f} ms; target p99 10")
    print(f"resident memory: now {int(status['VmRSS'].split()[0]) / 1e3:.1f} MB, most {int(status['VmHWM'].split()[0]) / 1e3:.1f} MB; target 8")


if sys.argv[1] == "wrapper":
    wrapper(int(sys.argv[2]))
else:
    plugin(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
