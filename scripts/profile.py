"""Shows where the time of `info`, `list` and `configure` goes: phases, system calls, and the critical path.

Started by profile.sh in a mount namespace of its own, as root. The program is not changed for this: what a task is doing is
told from the system calls it makes. strace knows their arguments but stretches time, perf's tracepoints cost about a
microsecond a call but have no arguments; so a run under strace says at which call each phase begins (the n-th openat of
the query, say), and runs under perf say when that was. Without perf, strace's times are shown.
"""
import argparse
import errno
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter, defaultdict

# The phases of each task in their order, and the system call that a phase begins with: name and, where that is not
# enough, arguments. `!` means any call but these.
PHASES = {
    'main': [
        ('start', None, ''),
        ('start of the query', 'socketpair', ''),
        ('options, privileges', 'geteuid|capget', ''),
        ('request', 'openat', r'O_DIRECTORY'),
        ('discovery', 'sendto', ''),
        ('container facts', 'openat|openat2|statx|newfstatat', r'"/?(proc/)?\d+|"/proc"'),
        ('copy of ldconfig', 'openat', r'ldconfig'),
        ('wait for NVML', 'poll|recvfrom', ''),
        ('driver files, plan', '!poll|recvfrom|brk|mmap|munmap|madvise|mprotect', ''),
        ('output', 'write', r'^1, '),
        ('sources', 'openat', r'"environ"'),
        ('container', 'unshare', 'CLONE_FS'),
        ('mounts', 'openat', r'"\.\./mountinfo"'),
        ('memory of links', 'openat', r'"ld\.so\.cache", O_RDONLY\|O_NOFOLLOW'),
        ('start of ldconfig', 'clone', 'CLONE_NEWPID'),
        ('further mounts', '!clone', ''),
        ('cgroup', 'openat|bpf', r'devices\.|BPF_PROG'),
        ('wait for ldconfig', 'poll', r'\}, \{'),
        ('end', 'wait4', ''),
    ],
    'query': [
        ('start', None, ''),
        ('wait for the request', 'recvfrom', ''),
        ('confinement', '!recvfrom|brk', ''),
        ('NVML', 'openat', 'libnvidia-ml'),
        ('end', 'exit_group', ''),
    ],
    'ldconfig': [
        ('cage', None, ''),
        ('run', 'execveat', ''),
        ('end', 'exit_group', ''),
    ],
}
# Who a task waits for in these calls. A child that is vforked holds its parent until it executes.
WAITS = {
    'main': {'poll': ['query', 'ldconfig'], 'recvfrom': ['query'], 'wait4': ['query', 'ldconfig'], 'clone': ['ldconfig']},
    'query': {'recvfrom': ['main'], 'read': ['main']},
    'ldconfig': {},
}
SHORTEST_WAIT = 10e-6
TRACED = dict(os.environ)  # the environment under strace


class Task:
    """A process or thread of one run: its life, and its calls as (start, end, name, arguments)."""

    def __init__(self, role, parent, birth):
        self.role, self.parent, self.birth, self.end = role, parent, birth, birth
        self.calls = []


def role_of(creator, known):
    """Which of the tasks of a command a new one is: the query is always the first."""
    return 'ldconfig' if 'query' in known and creator != 'query' else 'query'


# ---- the two tracers --------------------------------------------------------------------------------------------

def strace(command, log):
    """Runs a command under strace: its tasks by role."""
    subprocess.run(['strace', '-f', '-qq', '-ttt', '-s', '200', '-o', log] + command, env=TRACED,
                   stdout=subprocess.DEVNULL, check=True)
    tasks, by_id, pending, created = {}, {}, {}, {}
    for line in open(log, errors='replace'):
        found = re.match(r'(\d+)\s+([\d.]+) (<\.\.\. )?(\w+)(.*)', line)
        if not found:
            continue
        ident, time, resumed, name, rest = found[1], float(found[2]), found[3], found[4], found[5]
        task = by_id.setdefault(ident, Task(None, None, time))
        task.end = time
        if resumed:
            begun = pending.pop(ident, None)
            if not begun:  # the end of exit_group
                continue
            call = (begun[0], time, name, begun[1] + rest)
        elif rest.endswith('<unfinished ...>') and name not in ('exit', 'exit_group'):
            pending[ident] = (time, rest[1:])
            continue
        else:
            call = (time, time, name, rest[1:])
        # Asked again at once when something is renamed or mounted somewhere.
        if not (name == 'openat2' and 'EAGAIN' in rest):
            task.calls.append(call)
        child = re.search(r' = (\d+)$', rest) if name in ('clone', 'clone3') else None
        if child:
            created[child[1]] = ident
    for ident, task in by_id.items():
        creator = created.get(ident)
        task.parent = by_id[creator].role if creator else None
        task.role = role_of(task.parent, tasks) if creator else 'main'
        tasks[task.role] = task
    for task in by_id.values():
        task.calls.sort(key=lambda call: call[0])
    return tasks


def numbers():
    """Names of system calls by number."""
    table = subprocess.run(['sh', '-c', 'printf "#include <sys/syscall.h>\n" | cc -E -dM -'], capture_output=True, text=True,
                           check=True).stdout
    return {int(n): name for name, n in re.findall(r'#define __NR_(\w+) (\d+)', table)}


def perf(command, log, names):
    """Runs a command under perf's tracepoints: its tasks by role."""
    events = 'raw_syscalls:sys_enter,raw_syscalls:sys_exit,sched:sched_process_fork,sched:sched_process_exit'
    subprocess.run(['perf', 'record', '-q', '-o', log, '-e', events] + command, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE, check=True)
    text = subprocess.run(['perf', 'script', '--ns', '-i', log, '-F', 'tid,time,event,trace'], capture_output=True, text=True,
                          check=True).stdout
    rows = sorted((float(m[2]), int(m[1]), m[3], m[4]) for m in
                  re.finditer(r'^\s*(\d+)\s+([\d.]+):\s+(\S+?):\s+(.*)$', text, re.M))
    tasks, by_id, begun = {}, {}, {}
    for time, ident, event, rest in rows:
        if not by_id:
            by_id[ident] = tasks['main'] = Task('main', None, time)
        if event.endswith('process_fork'):
            child = int(re.search(r'child_pid=(\d+)', rest)[1])
            creator = by_id[ident]
            role = role_of(creator.role, tasks)
            by_id[child] = tasks[role] = Task(role, creator.role, time)
        task = by_id.get(ident)
        if task is None:
            continue
        task.end = time
        if event.endswith('sys_enter'):
            number = re.match(r'NR (\d+)', rest)[1]
            begun[ident] = (time, names.get(int(number), number))
            if begun[ident][1] in ('exit', 'exit_group'):
                task.calls.append((time, time, begun[ident][1], ''))
        elif event.endswith('sys_exit') and ident in begun:
            start = begun.pop(ident)
            if not (start[1] == 'openat2' and rest.endswith('= -%d' % errno.EAGAIN)):
                task.calls.append((start[0], time, start[1], ''))
    return tasks


# ---- phases -----------------------------------------------------------------------------------------------------

def boundaries(task):
    """The phases of a task under strace: (phase, name of the call that it begins with, how many of them came before)."""
    found, current, seen = [(PHASES[task.role][0][0], None, 0)], 0, Counter()
    for _, _, name, arguments in task.calls:
        for index in range(current + 1, len(PHASES[task.role])):
            phase, wanted, pattern = PHASES[task.role][index]
            negative = wanted.startswith('!')
            if (name in wanted.lstrip('!').split('|')) != negative and re.search(pattern, arguments):
                # A phase that begins with any call begins only right after the one before it.
                if negative and index != current + 1:
                    continue
                found.append((phase, name, seen[name]))
                current = index
                break
        seen[name] += 1
    return found


def phases(task, begins):
    """The phases of a task in another run: (phase, start, end, number of calls)."""
    positions = defaultdict(list)
    for index, call in enumerate(task.calls):
        positions[call[2]].append(index)
    marks = []
    for phase, name, ordinal in begins:
        if name is None:
            marks.append((phase, task.birth, 0))
        elif ordinal < len(positions[name]):
            index = positions[name][ordinal]
            marks.append((phase, task.calls[index][0], index))
    marks.sort(key=lambda mark: mark[1])
    ends = marks[1:] + [(None, task.end, len(task.calls))]
    return [(phase, start, end[1], end[2] - index) for (phase, start, index), end in zip(marks, ends)]


def critical_path(tasks):
    """From the end of the command backwards, over to whom it waited for: (role, start, end), in order of time."""
    path, task, now = [], tasks['main'], tasks['main'].end
    for _ in range(1000):
        waits = [(c, tasks[other]) for c in task.calls if c[1] <= now and c[1] - c[0] > SHORTEST_WAIT
                 for other in WAITS[task.role].get(c[2], []) if other in tasks]
        waits = [(c, other) for c, other in waits if other.birth < c[1] and other.end > c[0]]
        if not waits:
            path.append((task.role, task.birth, now))
            if task.parent is None:
                break
            now, task = task.birth, tasks[task.parent]
            continue
        wait, other = waits[-1]
        path.append((task.role, min(wait[1], now), now))
        now, task = min(wait[1], other.end), other
    return [part for part in reversed(path) if part[2] > part[1]]


def show(title, runs, begins):
    """Prints the phases and the critical path of the fastest of several runs: the one that was disturbed least."""
    def wall(tasks):
        return tasks['main'].end - tasks['main'].birth

    tasks = min(runs, key=wall)
    total, start = wall(tasks), tasks['main'].birth
    path = critical_path(tasks)
    rows = sorted((first, role, phase, last, calls) for role, task in tasks.items()
                  for phase, first, last, calls in phases(task, begins.get(role, [])))
    print('\n== %s: %.2f ms the fastest of %d runs, %.2f the median; %d calls' % (
        title, total * 1e3, len(runs), statistics.median(map(wall, runs)) * 1e3, sum(row[4] for row in rows)))
    print('%-10s %-26s %8s %8s %8s %6s' % ('task', 'phase', 'from ms', 'ms', 'critical', 'calls'))
    chain = []
    for first, role, phase, last, calls in rows:
        critical = sum(max(0.0, min(last, b) - max(first, a)) for owner, a, b in path if owner == role)
        print('%-10s %-26s %8.3f %8.3f %8.3f %6d' % (
            role, phase, (first - start) * 1e3, (last - first) * 1e3, critical * 1e3, calls))
        if critical >= 0.005 * total:
            chain.append('%s: %s %.0f %%' % (role, phase, critical / total * 100))
    print('critical path: ' + ' > '.join(chain))


# ---- the world --------------------------------------------------------------------------------------------------

CONTAINER = r'''
set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=555 tmpfs "$1/proc/driver"
mkdir -m 555 "$1/proc/driver/nvidia"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
echo ready
exec sleep 600
'''
CGROUPS = '/sys/fs/cgroup/devices'


class Container:
    """A fresh root with a sleeping process in a mount namespace, and a device cgroup of version 1 where there are any."""

    def __init__(self, template, place):
        self.root, self.cgroup = place, None
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run(['cp', '-a', template, place], check=True)
        self.process = subprocess.Popen(['unshare', '--mount', '--propagation', 'private', '--', 'sh', '-c', CONTAINER, 'sh',
                                         place], stdout=subprocess.PIPE)
        self.process.stdout.readline()
        if os.path.isdir(CGROUPS):
            self.cgroup = '%s/nvc-profile-%d' % (CGROUPS, os.getpid())
            os.makedirs(self.cgroup, exist_ok=True)
            for file, text in (('devices.deny', 'a'), ('cgroup.procs', str(self.process.pid))):
                with open(self.cgroup + '/' + file, 'w') as f:
                    f.write(text)

    def end(self):
        """Stops the process and removes the root."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if self.cgroup:
            os.rmdir(self.cgroup)
        shutil.rmtree(self.root, ignore_errors=True)


def commands(o):
    """The commands that are looked at: title, and the arguments for a container, or for none."""
    start = [o.program, '--root=' + o.driver]
    configure = ['--ldconfig=@' + o.ldconfig, '--device=0', '--compute', '--utility']
    return [('info', start + ['info'], False), ('list', start + ['list'], False),
            ('configure', start + ['configure'] + configure, True)]


def run(o, title, command, in_container, names):
    """Profiles one command."""
    def once(tracer, *more):
        container = Container(o.rootfs, o.scratch + '/rootfs') if in_container else None
        try:
            end = ['--pid=%d' % container.process.pid, container.root] if container else []
            return tracer(command + end, o.scratch + '/trace', *more)
        finally:
            if container:
                container.end()

    once(strace)  # warms caches
    example = once(strace)
    begins = {role: boundaries(task) for role, task in example.items()}
    runs = [once(perf, names) if names else once(strace) for _ in range(o.runs)]
    tasks = runs[-1]
    for role, task in example.items():
        told = Counter(c[2] for c in task.calls)
        now = Counter(c[2] for c in tasks[role].calls) if role in tasks else Counter()
        for _, name, _ in begins[role]:
            # How often a task waits differs from run to run, and matters to none of its later phases but those of waiting.
            if name and name not in WAITS[role] and told[name] != now[name]:
                print('profile: %s of %s: %d under strace, %d otherwise: phases may be off' % (name, role, told[name], now[name]),
                      file=sys.stderr)
    show(title, runs, begins)


def main():
    """Reads the command line and profiles."""
    p = argparse.ArgumentParser(prog='profile.sh', description='Where the time of info, list and configure goes.')
    for name in ('program', 'driver', 'rootfs', 'scratch', 'ldconfig'):
        p.add_argument('--' + name, required=True)
    p.add_argument('-n', '--runs', type=int, default=15, help='runs of each command (default 15)')
    p.add_argument('command', nargs='*', help='of info, list, configure (default: all)')
    o = p.parse_args()
    names = numbers() if shutil.which('perf') else None
    if names:
        # perf puts its own programs first, where the driver's are looked for too: under strace as well, then.
        added = subprocess.run(['perf', 'record', '-q', '-o', '/dev/null', 'printenv', 'PATH'], capture_output=True, text=True)
        TRACED['PATH'] = added.stdout.strip() or os.environ['PATH']
    if not names:
        print('profile: no perf: times are strace\'s, and stretched by it')
    for title, command, in_container in commands(o):
        if not o.command or title in o.command:
            run(o, title, command, in_container, names)


if __name__ == '__main__':
    main()
