"""Runs the commands of scripts/bench/runtime.sh in alternation and prints a table: medians, and ratios of one run."""

import copy
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys

work, programs, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
bundle, state = f"{work}/bundle", f"{work}/state"
runc, simulated = shutil.which("runc"), f"{work}/sim-runc"
runtime = f"{programs}/nvidia-container-runtime"
plain = json.load(open(f"{bundle}/config.json"))
plain["process"].update(terminal=False, args=["sleep", "1"])
plain["root"]["readonly"] = False


def with_environment(*variables):
    spec = copy.deepcopy(plain)
    spec["process"]["env"] += variables
    return spec


def rewritten(config, spec):
    """config.json as our runtime leaves it in mode cdi: the configuration's low-level runtime is /bin/true."""
    write(spec)
    variables = dict(os.environ, NVIDIA_CTK_CONFIG_FILE_PATH=f"{work}/{config}.toml")
    subprocess.run([runtime, "create", "--bundle", bundle, "once"], env=variables, check=True)
    return json.load(open(f"{bundle}/config.json"))


def write(spec):
    with open(f"{bundle}/config.json", "w") as file:
        json.dump(spec, file)


def without_hooks(spec):
    return {key: value for key, value in spec.items() if key != "hooks"}


gpu = with_environment("NVIDIA_VISIBLE_DEVICES=0")
separate = rewritten("separate", gpu)
merged = rewritten("merged", gpu)
for name, spec in (("separate", separate), ("merged", merged)):
    hooks = [hook["args"][1] for stage in spec["hooks"].values() for hook in stage]
    print(f"# hooks, {name}: {' '.join(hooks)}")

# Name: command of a create (None: a plain command), config.json, configuration file.
creates = {
    "runc create": (runc, plain, None),
    "through the runtime, no GPU": (runtime, plain, "without"),
    "simulated runc create": (simulated, plain, None),
    "legacy": (runtime, gpu, "legacy"),
    "jit-cdi": (runtime, gpu, "jit"),
    "legacy, one GPU of one": (runtime, gpu, "legacy1"),
    "legacy, one GPU of 16": (runtime, gpu, "legacy16"),
    "jit-cdi, one GPU of one": (runtime, gpu, "jit1"),
    "jit-cdi, one GPU of 16": (runtime, gpu, "jit16"),
    "CDI edits without hooks": (simulated, without_hooks(separate), None),
    "CDI edits, separate hooks": (simulated, separate, None),
    "CDI edits, merged hook": (simulated, merged, None),
}
commands = {
    "/bin/true": ["/bin/true"],
    "nvidia-container-runtime-hook --version": [f"{programs}/nvidia-container-runtime-hook", "--version"],
    "nvidia-cdi-hook --version": [f"{programs}/nvidia-cdi-hook", "--version"],
    # It executes the low-level runtime's --version, here /bin/true.
    "nvidia-container-runtime --version": [runtime, "--version"],
}


def once(command, config=None, measure="run"):
    variables = dict(os.environ, NVIDIA_CTK_CONFIG_FILE_PATH=f"{work}/{config or 'version'}.toml")
    # Files, not pipes: the container's process keeps them open.
    with open(f"{work}/out", "w+") as out, open(f"{work}/errors", "w+") as errors:
        done = subprocess.run([f"{work}/{measure}", *command], env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
        out.seek(0)
        errors.seek(0)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {done.returncode}: {errors.read()}")
        return out.read()


def create(name, turn, measure="run"):
    program, spec, config = creates[name]
    write(spec)
    # One id for each container: the kernel may still be removing the last one's cgroups.
    container = f"bench-{os.getpid()}-{turn}-{list(creates).index(name)}"
    command = [program, "--root", state, "create", "--bundle", bundle, container]
    delete = [runc, "--root", state, "delete", "-f", container]
    if measure == "trace":  # it waits for the container's process too
        return once(["/bin/sh", "-c", f'"$@" && exec {shlex.join(delete)} 2> /dev/null', "sh", *command], config, measure)
    text = once(command, config, measure)
    subprocess.run(delete, check=True, stderr=subprocess.DEVNULL)
    return text


times = {name: [] for name in [*commands, *creates]}
os.environ["PATH"] += ":/usr/sbin:/sbin"
for turn in range(runs + 1):
    for name, command in commands.items():
        times[name].append(float(once(command).split()[0]))
    for name in creates:
        times[name].append(float(create(name, turn).split()[0]))
times = {name: values[1:] for name, values in times.items()}
median = {name: statistics.median(values) for name, values in times.items()}

print(f"# {runs} alternating runs, load {os.getloadavg()[0]:.1f}")
for name, values in times.items():
    quartiles = statistics.quantiles(values, n=4)
    print(f"{name}: {median[name]:.2f} ms (quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f})")


def added(name, base):
    return statistics.median(one - other for one, other in zip(times[name], times[base]))


true, base = median["/bin/true"], median["runc create"]
print("# ratios: figure, target")
for name, target in zip(list(commands)[1:4], (1.5, 1.5, 2.5)):
    print(f"{name}: {median[name] / true:.2f} of /bin/true, {target}")
print(f"no GPU: {added('through the runtime, no GPU', 'runc create') / true:.2f} of /bin/true added, 2.5")
for name, other, target in (
    ("legacy", "simulated runc create", 0.15),
    ("jit-cdi", "simulated runc create", 0.28),
    ("CDI edits, separate hooks", "CDI edits without hooks", 0.43),
    ("CDI edits, merged hook", "CDI edits without hooks", 0.22),
):
    print(f"{name}: {added(name, other) / base:.2f} of runc create added, {target}")
for mode in ("legacy", "jit-cdi"):
    more = added(f"{mode}, one GPU of 16", f"{mode}, one GPU of one")
    print(f"{mode}: {more:.2f} ms more on a machine with 16 GPUs of 7 ms, 3")

print("# peak memory of each process, MB; target 6, but for NVML's")
for name in ("through the runtime, no GPU", "legacy", "jit-cdi", "CDI edits, separate hooks", "CDI edits, merged hook"):
    peaks = {}
    for line in create(name, "trace", "trace").splitlines():
        size, *_, program = line.split()
        program = os.path.basename(program)
        if program.startswith("nvidia"):
            peaks.setdefault(program, []).append(int(size) * 1024 / 1e6)
    print(f"{name}: " + "; ".join(f"{program} {', '.join(f'{size:.1f}' for size in sizes)}" for program, sizes in peaks.items()))
