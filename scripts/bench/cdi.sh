#!/bin/bash
# Measures nvidia-ctk cdi generate and nvidia-cdi-hook: time beside /bin/true's, system calls, memory, growth with GPUs.
#
#   scripts/bench/cdi.sh [RUNS]
#
# On the fixture of ../shared/conformance if it was built, else on the simulated driver, in a mount namespace of its own.
# Needs root, strace, and release builds of nvc-ctk, nvc-query, nvc-cdi-hook and nvc-simdriver.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/../.."
if [ "${1:-}" != --inside ]; then
  work=$(mktemp -d -p /var/lib) # no driver may be below a directory of all users
  status=0
  unshare --mount --propagation private "$0" --inside "$work" "$(readlink -f "${CARGO_TARGET_DIR:-target}")" "${1:-40}" || status=$?
  rm -rf "$work"
  exit $status
fi
work=$2 target=$3 runs=$4
ctk=$target/release/nvidia-ctk hook=$target/release/nvidia-cdi-hook
# shellcheck source=scripts/bench/programs.sh
. scripts/bench/programs.sh
simdriver=$(newer nvc-simdriver)

show() { # DRIVER: /proc shows it
  mount --bind "$1/proc/devices" /proc/devices
  mount --bind "$1/proc/driver" /proc/driver
}
"$simdriver" build "$work/small" > "$work/log"
"$simdriver" build "$work/large" --size 64 7 > "$work/log"
mkdir "$work/null"
state="{\"root\": \"$work/null\"}"
echo "$state" > "$work/state"
mount -t tmpfs tmpfs "$work/null"

compile run
# Medians of the runs, each next to one of /bin/true, with real-time priority because of other programs of the machine.
# The time, the whole CPU time and the most memory include the query process, which works beside the program; "its own" is
# the CPU time of the program without it.
measure() { # NAME COMMAND...
  python3 - "$work/run" "$runs" "$@" <<'END'
import statistics, subprocess, sys
run, runs, name, command = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
def once(command):
    done = subprocess.run(['chrt', '-f', '50', run, *command], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]
pairs = [(once(command), once(['/bin/true'])) for _ in range(runs)]
median = lambda which, what: statistics.median(pair[which][what] for pair in pairs)
memory = max(ours[2] for ours, _ in pairs)
print(f'{name}: {median(0, 0):.2f} ms, /bin/true {median(1, 0):.2f} ms, {median(0, 0) / median(1, 0):.1f} times; '
      f'CPU {median(0, 1):.2f} ms, its own {median(0, 3):.2f} ms, /bin/true {median(1, 3):.2f} ms, '
      f'{median(0, 3) / median(1, 3):.1f} times; {memory:.1f} MiB')
END
}
calls() { # NAME COMMAND...: calls of the first process with its threads, and of the query process
  local name=$1
  shift
  rm -f "$work"/trace.*
  strace -ff -qq -o "$work/trace" "$@" > /dev/null 2>&1
  python3 - "$name" "$work" <<'END'
import glob, re, sys
name, work = sys.argv[1:]
traces = {path: open(path, errors='replace').read() for path in glob.glob(work + '/trace.*')}
lines = {path: sum(1 for line in text.splitlines() if re.match(r'\w+\(', line)) for path, text in traces.items()}
nvml = [path for path, text in traces.items() if 'libnvidia-ml.so' in text and not text.startswith('execve')]
print(f'{name}: {sum(lines.values()) - sum(lines[p] for p in nvml)} system calls, and {sum(lines[p] for p in nvml)} of the query process')
END
}

show "$work/small"
generate=("$ctk" --quiet cdi generate "--nvidia-cdi-hook-path=$hook")
calls "generate, simulated driver" "${generate[@]}" "--driver-root=$work/small"
measure "generate, simulated driver" "${generate[@]}" "--driver-root=$work/small"
fixture=${NVC_FIXTURE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvc-conformance}
if [ -d "$fixture/droot" ]; then
  calls "generate, fixture" "${generate[@]}" "--driver-root=$fixture/droot" "--dev-root=$work/small"
  measure "generate, fixture" "${generate[@]}" "--driver-root=$fixture/droot" "--dev-root=$work/small"
fi
measure "nvidia-cdi-hook noop" "$hook" noop "--container-spec=$work/state"
measure "nvidia-cdi-hook --version" "$hook" --version
stat -c '%n: %s bytes' "$hook"
umount /proc/driver /proc/devices
show "$work/large"
measure "generate, 64 GPUs with 7 MIG devices each" "${generate[@]}" "--driver-root=$work/large"
