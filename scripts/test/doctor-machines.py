"""Broken machines for `nvidia-ctk doctor`, one case each: the fault, and the finding that a person would expect first.

Started by doctor.sh on the machines of the conformance suite. A machine without a fault must have no finding. On the
others each command that is printed as a repair is run as it is, and then its finding must be gone. Programs of others,
such as systemctl, are replaced by models that do what matters here, and fail for any other command.
"""
import dataclasses
import os
import subprocess
import sys
import tempfile
import time

from harness import *
from pieces import *

SAYS = {}
HARNESS = sys.modules['harness']


def machine(name, first, setup='', also=(), level='WRONG', more=0, specification=True, files=(), options=(), ldconfig=True,
            **world):
    """Defines a machine. `first` is a text of the first finding, None if all is right; `level` is the finding's, `also`
    are texts of further ones, and `more` counts those that nobody looks at. Unless `specification` is false, there is
    one of the machine's GPUs. `options` are those of nvidia-ctk."""
    SAYS[name] = {'first': first, 'level': level, 'also': list(also), 'more': more}
    only = os.environ.get('DOCTOR_ONLY')
    if only and only not in name:
        del SAYS[name]
        return
    files = {**MODELS, **MANIFEST, **dict(files)}
    if specification:
        files['/var/run/cdi/gpu.json'] = spec('nvidia.com/gpu', 'of-this-test')
    case('doctor-' + name, *options, 'doctor', stdout='text', setup=MODELS_SETUP + setup, ldconfig=ldconfig, files=files, **world)


# ---- repairs -----------------------------------------------------------------------------------------------------------

MODELS = {
    '/usr/sbin/systemctl': r"""#!/bin/sh
case "$*" in
'restart docker') [ ! -e /alive ] || /usr/bin/dockerd < /dev/null > /dev/null 2>&1 & ;;
'start docker' | 'reload docker') ;;
'restart containerd' | 'restart crio') : > /restarted ;;
'show --property='*) [ ! -e /units ] || cat /units ;;
'daemon-reload') sed -i s/PrivateDevices=yes/PrivateDevices=no/ /units ;;
'enable --now nvidia-cdi-refresh.service nvidia-cdi-refresh.path nvidia-cdi-verify.timer') sed -i s/=disabled/=enabled/ /units ;;
'enable --now nvidia-persistenced' | 'enable --now nvidia-fabricmanager')
  [ $3 != nvidia-persistenced ] || [ -e /usr/lib/systemd/system/$3.service ] || exit 1
  rm -rf /run/$3; mkdir -p /run/$3; : > /run/$3/socket ;;
*) echo "systemctl: $*" >&2; exit 5 ;;
esac
""",
    '/usr/sbin/modprobe': r"""#!/bin/sh
case "$*" in
nvidia | '-a nvidia nvidia-uvm') [ -e /proc/driver/nvidia ] || cp -a /loadable/. /proc/driver/ ;;
nvidia-uvm) ;;
*) echo "modprobe: $*" >&2; exit 1 ;;
esac
[ ! -e /loadable-devices ] || cat /loadable-devices > /proc/devices
""",
    '/usr/sbin/setsebool': r"""#!/bin/sh
[ "$1 $3" = "-P on" ] || exit 1
mkdir -p /sys/fs/selinux/booleans; echo "1 1" > /sys/fs/selinux/booleans/$2
""",
}
# The suite's driver has the library of OpenCL and no manifest: the host has it, and a driver's container lacks it.
MANIFEST = {'/etc/OpenCL/vendors/nvidia.icd': 'libnvidia-opencl.so.1\n'}
# A shell's usual commands; without NVIDIA's proc files, those that modprobe brings.
MODELS_SETUP = """
cp $BUSYBOX usr/bin/busybox
for name in cat chmod cp find mkdir mknod mv rm rmdir sed timeout; do ln -s busybox usr/bin/$name; done
cp -a $PROC loadable
# Nobody listens to the suite's sockets.
rm -rf run/nvidia-persistenced; mkdir run/nvidia-persistenced; : > run/nvidia-persistenced/socket
"""
os.environ['BUSYBOX'] = shutil.which('busybox') or sys.exit('no busybox (static)')

# nvidia-modprobe is not on each machine.
NVIDIA_MODPROBE = {'/usr/bin/nvidia-modprobe': r"""#!/bin/sh
case "$1" in
-c) mknod -m 666 /dev/nvidia$2 c 195 $2 ;;
-f) mkdir -p /dev/nvidia-caps
    while read -r key minor; do
      [ "$key" != DeviceFileMinor: ] || mknod -m 666 /dev/nvidia-caps/nvidia-cap$minor c 234 $minor
    done < "$2" ;;
*) exit 1 ;;
esac
"""}


def docker_reads(machine, line):
    """Lets a docker know what its file says now. A reload does not switch CDI."""
    client, file = (machine.path('/usr/bin/docker'), machine.path('/etc/docker/daemon.json'))
    other = machine.path('/etc/docker/other.json')
    file = other if os.path.exists(other) else file
    if 'systemctl' not in line or ' docker' not in line or not os.path.exists(client):
        return
    settings = json.loads(read(file)) if os.path.exists(file) else {}
    version = re.search('"ServerVersion": "([^"]*)"', read(client))
    had = '"/etc/cdi"' in read(client)
    cdi = had if 'reload' in line else had or settings.get('features', {}).get('cdi', False)
    text = docker_says(version[1] if version else '28.5.1', settings.get('runtimes', {}),
                       settings.get('default-runtime', 'runc'), cdi)
    write(client, text['/usr/bin/docker'])


def execute_and_repair(case_, machine, env, execute=HARNESS.execute):
    """Runs doctor, then the commands that it prints, and lists them with what they did: up to three times, since a
    repaired machine can have further findings."""
    if os.path.exists(machine.path('/alive')):
        write(machine.path('/join.new'), '%d/ns/mnt' % machine.keeper)
        os.rename(machine.path('/join.new'), machine.path('/join'))
        for _ in range(100):
            if os.path.exists(machine.path('/join')):
                time.sleep(0.02)
    status, out, err = execute(case_, machine, env)
    log, faults, seen = [], [], set()

    def run_here(program, *args):
        return execute(dataclasses.replace(case_, program=program, args=list(args)), machine, env)

    def findings():
        text = run_here('nvidia-ctk', *case_.args, '--format=json')[1]
        return [finding for check in json.loads(text)['checks'] for finding in check['findings']]

    for again in range(3):
        todo = [finding for finding in findings() if finding['command'] and finding['command'] not in seen]
        for finding in todo:
            line = finding['command']
            if not again and 'repair: %s\n' % line not in out:
                faults.append('a command that is not printed: ' + line)
            if line in seen:
                continue
            seen.add(line)
            done, said, error = run_here('../../bin/sh', '-c', line)
            log.append(line)
            if done:
                faults.append('the repair fails: %s: %s %s%s' % (line, done, said, error))
            docker_reads(machine, line)
        left = [finding['what'] for finding in findings()] if todo else []
        faults += ['not repaired by %s: %s' % (one['command'], one['what']) for one in todo if one['what'] in left]
    return status, out + '\n' + json.dumps({'commands': log, 'faults': faults}), err


HARNESS.execute = execute_and_repair

# ---- machines ----------------------------------------------------------------------------------------------------------

CONFIG_TOML = '/etc/nvidia-container-runtime/config.toml'
DAEMON = '/etc/docker/daemon.json'

machine('healthy', None)
machine('no-driver', '/dev/nvidiactl, /dev/nvidia-uvm and /dev/nvidia-uvm-tools are missing', also=['/dev/nvidia0 and /dev/nvidia1 are missing', 'there are no libraries of driver'], machine='empty')
machine('no-uvm-node', 'nvidia-uvm is missing', 'rm dev/nvidia-uvm')
machine('old-uvm-node', 'is device 511:0', 'rm dev/nvidia-uvm; mknod -m 666 dev/nvidia-uvm c 511 0')
machine('no-gpu-node', '/dev/nvidia1 is missing', 'rm dev/nvidia1')
machine('node-for-root', 'only root may use /dev/nvidiactl', 'chmod 600 dev/nvidiactl')
machine('node-is-file', '/dev/nvidiactl is not a device', 'rm dev/nvidiactl; touch dev/nvidiactl')
machine('mismatch', 'of driver 550.1.2', 'sed -i s/535.261.03/550.1.2/ $PROC/nvidia/version')
machine('nvml', 'driver not loaded', mock='init=9')
machine('config-syntax', 'config.toml', files={CONFIG_TOML: 'a = \n'})
machine('config-key', 'did you mean disable-require', files={CONFIG_TOML: 'disable-requir = true\n'})
machine('docker-syntax', 'daemon.json: EOF', files={DAEMON: '{"a":'})
machine('docker-runtime', '/no/such, which is missing', files={DAEMON: '{"runtimes":{"nvidia":{"path":"/no/such"}}}'})
machine('containerd-syntax', 'line 1, column 11', files={'/etc/containerd/config.toml': 'version = \n'})
machine('spec-file', '/no/lib is missing', files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'mounts': [{'hostPath': '/no/lib', 'containerPath': '/x'}]})})
machine('spec-major', 'is recorded as 400:0', files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'deviceNodes': [{'path': '/dev/nvidia-uvm', 'major': 400}]})})
machine('spec-conflict', 'so engines ignore it', files={'/etc/cdi/a.json': spec('v.com/cc', 'x'),
                                                          '/etc/cdi/b.json': spec('v.com/cc', 'x')})
machine('spec-hook', 'hook /bin/sh has no env', files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'hooks': [{'hookName': 'createContainer', 'path': '/bin/sh'},
                                      {'hookName': 'createContainer', 'path': '/bin/sh', 'env': ['A=b']},
                                      {'hookName': 'prestart', 'path': '/bin/sh'}]})})
machine('spec-mode', 'can be read by root only', level='advice', setup='chmod 600 etc/cdi/a.json', files={'/etc/cdi/a.json': spec('v.com/cc', 'x')})
machine('mig-empty', 'has no MIG devices', level='advice', mock='migcount=0')
machine('mig-minors', 'mig-minors is missing', 'rm $PROC/nvidia-caps/mig-minors')
machine('no-hook', 'nvidia-cdi-hook is not in PATH', 'rm usr/bin/nvidia-cdi-hook')
machine('persistence', 'does not run', level='advice', setup='rm run/nvidia-persistenced/socket',
        files={'/usr/lib/systemd/system/nvidia-persistenced.service': ''})
# NVIDIA's installer brings no unit.
machine('persistence-without-unit', 'does not run', level='advice', setup='rm run/nvidia-persistenced/socket',
        files={'/usr/bin/nvidia-persistenced': '#!/bin/sh\n: > /run/nvidia-persistenced/socket\n'})
machine('nodes-swapped', '/dev/nvidia0', 'mv dev/nvidia0 dev/x; mv dev/nvidia1 dev/nvidia0; mv dev/x dev/nvidia1', also=['/dev/nvidia1'])
machine('libraries-newer', 'of driver 525.1.2, the libraries are of 535.261.03', 'sed -i s/535.261.03/525.1.2/ $PROC/nvidia/version')
machine('config-directory', 'config.toml', 'mkdir -p etc/nvidia-container-runtime/config.toml')
machine('spec-empty', '/etc/cdi/x.yaml', files={'/etc/cdi/x.yaml': ''})
machine('hook-broken-link', 'nvidia-cdi-hook', 'rm usr/bin/nvidia-cdi-hook; ln -s /no/such usr/bin/nvidia-cdi-hook')
machine('two-faults', 'nvidia-uvm is missing', 'rm dev/nvidia-uvm', also=['daemon.json: EOF'], files={DAEMON: '{"a":'})

# Machines as users have them, from a second author: broken ones, and odd ones in order.
CONTAINERD = '/etc/containerd/config.toml'
NO_NODES = 'rm -f dev/nvidia? dev/nvidiactl dev/nvidia-uvm*\n'
PCI = '''
pci() {  # BUS DRIVER
  d=sys/devices/pci0000:00/$1
  mkdir -p $d sys/bus/pci/devices sys/bus/pci/drivers/$2
  echo 0x10de > $d/vendor; echo 0x030200 > $d/class
  ln -s ../../../devices/pci0000:00/$1 sys/bus/pci/devices/$1
  ln -s ../../../bus/pci/drivers/$2 $d/driver
}
'''


def program(text):
    """A program that prints a text."""
    return '#!/bin/sh\necho "%s"\n' % text


def toml(section, line):
    """A config.toml with one setting."""
    return {CONFIG_TOML: '[%s]\n%s\n' % (section, line)}


def containerd(program_path, more=''):
    """containerd's configuration with our runtime."""
    runtime = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia'
    return {CONTAINERD: 'version = 2\n%s[%s]\nruntime_type = "io.containerd.runc.v2"\n[%s.options]\nBinaryName = "%s"\n'
                        % (more, runtime, runtime, program_path)}


DOCKER = {'/usr/bin/dockerd': program('Docker version 28.0.1, build x')}
TOOLKIT = {'/usr/bin/' + name: program('') for name in
           ('nvidia-container-runtime', 'nvidia-container-runtime-hook', 'nvidia-container-cli')}
RUNC = {'/usr/bin/runc': program('runc version 1.1.15')}
WITH_DOCKER = {DAEMON: '{"runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}', **DOCKER, **TOOLKIT, **RUNC}
CLI = 'nvidia-container-cli'
ENFORCING = 'mkdir -p sys/fs/selinux; echo 1 > sys/fs/selinux/enforce'
OLD_HOOK = '{"version":"1.0.0","hook":{"path":"/usr/bin/nvidia-container-toolkit"},"when":{"always":true},"stages":["prestart"]}'

machine('nouveau', 'nouveau has the GPUs', PCI + NO_NODES + 'pci 0000:3b:00.0 nouveau', proc_driver=False)
machine('vfio', 'vfio-pci has the GPU 0000:3b:00.0', PCI + NO_NODES + 'pci 0000:3b:00.0 vfio-pci', proc_driver=False)
machine('not-loaded', 'the module nvidia is not loaded', NO_NODES, proc_driver=False)
machine('kernel-updated', 'no module nvidia for this kernel', NO_NODES + '''
mkdir -p lib/modules/$KERNEL; echo kernel/drivers/net/dummy.ko: > lib/modules/$KERNEL/modules.dep''', proc_driver=False)
machine('secure-boot', 'Secure Boot', NO_NODES + '''
mkdir -p sys/firmware/efi/efivars
printf '\\006\\000\\000\\000\\001' > sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c''', proc_driver=False)
machine('nothing-installed', 'the module nvidia is not loaded', also=['no libcuda.so and no libnvidia-ml.so'], setup=PCI + 'pci 0000:3b:00.0 none; rm sys/bus/pci/devices/0000:3b:00.0/driver', machine='empty', proc_driver=False)
machine('no-gpu', 'no NVIDIA GPU on its PCI bus', '''
mkdir -p sys/bus/pci/devices/0000:00:00.0; echo 0x8086 > sys/bus/pci/devices/0000:00:00.0/vendor''',
        also=['no libcuda.so and no libnvidia-ml.so'], machine='empty', proc_driver=False)
machine('lost', 'gpu is lost', mock='lost=0')
machine('fabric', 'nvidia-fabricmanager does not run',
        'mknod -m 666 dev/nvidia-nvswitch0 c 238 0; rm -rf run/nvidia-fabricmanager')
machine('stub', '/usr/local/cuda/lib64/stubs/libcuda.so.1, a stub', '''
mkdir -p usr/local/cuda/lib64/stubs; cp %s/libcuda.so.535.261.03 usr/local/cuda/lib64/stubs/libcuda.so
echo /usr/local/cuda/lib64/stubs > etc/stubs; cat etc/ld.so.conf >> etc/stubs; mv etc/stubs etc/ld.so.conf''' % LIB)
machine('only-32-bit', 'libcuda.so.1 is missing', 'rm %s/libcuda.so.535.261.03' % LIB, level='advice')
machine('no-caps-nodes', '/dev/nvidia-caps is missing', 'rm -r dev/nvidia-caps')
machine('root-left-over', 'the driver is in /', files=toml(CLI, 'root = "/run/nvidia/driver"'))
machine('root-not-set', 'the driver is in /run/nvidia/driver', also=['nvidia.icd is missing'], machine='driver-container')
machine('no-cgroups', 'no-cgroups is true', files={**WITH_DOCKER, **toml(CLI, 'no-cgroups = true')})
machine('ldconfig', '/opt/ldconfig is missing', files=toml(CLI, 'ldconfig = "@/opt/ldconfig"'))
machine('csv-on-a-pc', 'not a Jetson', files=toml('nvidia-container-runtime', 'mode = "csv"'))
machine('cdi-without', 'no specification has devices of nvidia.com/gpu', specification=False, more=1, files=toml('nvidia-container-runtime', 'mode = "cdi"'))
machine('mode', 'the modes are auto', files=toml('nvidia-container-runtime', 'mode = "legcay"'))
machine('annotation-prefixes', 'accept-annotations is off', level='advice',
        files=toml('nvidia-container-runtime.modes.cdi', 'annotation-prefixes = ["example.com/"]'))
machine('annotations-accepted', None, files={CONFIG_TOML: '''accept-annotations = true
accept-cdi-kinds = ["example.com/thing"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["example.com/"]
'''})
machine('cdi-off', 'CDI is switched off', level='advice', files={**TOOLKIT, **RUNC, **containerd('/usr/bin/nvidia-container-runtime', '''
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = false # as before
''')})
machine('yml', '/etc/cdi/nvidia.yml is not read', specification=False, more=1, files={'/etc/cdi/nvidia.yml': spec('nvidia.com/gpu', '0')})
machine('no-runtime', 'none of nvidia-container-runtime.runtimes exists',
        files={path: text for path, text in WITH_DOCKER.items() if path not in RUNC})
machine('not-installed', 'docker is installed, and neither', specification=False, more=1, files=DOCKER)
machine('snap', 'docker is a snap', 'mkdir -p snap/bin; ln -s /usr/bin/snap snap/bin/docker')
machine('old-hook', 'hooks.d/oci-nvidia-hook.json runs /usr/bin/nvidia-container-toolkit',
        files={'/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json': OLD_HOOK})
machine('cri-disabled', 'disables the CRI plugin',
        files={**TOOLKIT, **RUNC, **containerd('/usr/bin/nvidia-container-runtime', 'disabled_plugins = ["cri"]\n')})
machine('containerd-program', 'containerd\'s runtime nvidia is /usr/local/nvidia/toolkit/nvidia-container-runtime',
        files=containerd('/usr/local/nvidia/toolkit/nvidia-container-runtime'))
machine('selinux', 'SELinux does not let containers', ENFORCING, files={'/usr/bin/podman': program('podman version 5.4.2')})
machine('podman-5.5', 'podman reads specifications in /etc/cdi only', level='advice',
        files={'/usr/bin/podman': program('podman version 5.5.1')})
machine('wsl-without', 'libdxcore.so is missing', 'mknod -m 666 dev/dxg c 10 125', machine='empty', proc_driver=False)

machine('in-a-driver-container', 'nvidia.icd is missing', level='advice', machine='driver-container',
        files=toml(CLI, 'root = "/run/nvidia/driver"'))
machine('wsl', None, WSL_WORLD['setup'] + 'cp %s/libnvidia-ml.so.535.261.03 .%s/libnvidia-ml.so.1' % (LIB, STORE),
        files=WSL_FILES, env=WSL_WORLD['env'])
machine('jetson', None, CSV, machine='empty', files=CSV_FILES, proc_driver=False)
machine('with-docker', None, files=WITH_DOCKER)
machine('docker-under-selinux', None, ENFORCING, files=WITH_DOCKER)
machine('podman-alone', None, run_as=1000, files={'/usr/bin/podman': program('podman version 5.4.2')})
machine('podman-5.5-told', None, run_as=1000,
        files={'/usr/bin/podman': program('podman version 5.5.1'),
               '/etc/containers/containers.conf': '[engine]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'})
machine('podman-5.5-in-etc', None, run_as=1000, specification=False,
        files={'/usr/bin/podman': program('podman version 5.5.1'), '/etc/cdi/gpu.json': spec('nvidia.com/gpu', 'of-this-test')})
machine('cgroup-1', None, 'mkdir -p sys/fs/cgroup/devices sys/fs/cgroup/memory')
machine('without-persistence', None, 'rm -rf usr/bin/nvidia-persistenced run/nvidia-persistenced')
machine('nodes-of-a-group', None, 'chmod 660 dev/nvidia[01] dev/nvidiactl; chgrp 44 dev/nvidia[01] dev/nvidiactl')
machine('ubuntus-ldconfig', None, files=toml(CLI, 'ldconfig = "@/sbin/ldconfig.real"'))
machine('other-vendor', None, files={'/etc/cdi/amd.json': spec('amd.com/gpu', '0')})

# Engines that run, and do not know what their files say: a dockerd that joins the machine's mount namespace, which it is
# older than, and does nothing else, and a docker that answers.
DAEMON_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
int main(void) {
  for (; access("/alive", F_OK) == 0; usleep(20000)) {
    char path[64] = "";
    int join = open("/join", O_RDONLY), namespace;
    if (join < 0 || read(join, path, 63) <= 0) continue;
    close(join);
    namespace = openat(3, path, O_RDONLY);
    if (namespace < 0 || setns(namespace, CLONE_NEWNS) != 0) return 1;
    unlink("/join");
  }
  return 0;
}
"""
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(['gcc', '-static', '-x', 'c', '-o', folder + '/dockerd', '-'], input=DAEMON_SOURCE, text=True, check=True)
    with open(folder + '/dockerd', 'rb') as file:
        DOCKERD = {'/usr/bin/dockerd': file.read()}
# Until it is executed, the process has another name.
START = """
touch alive; chmod 755 usr/bin/dockerd
chroot . /usr/bin/dockerd < /dev/null > /dev/null 2>&1 3< /proc &
until [ "$(cat /proc/$!/comm)" = dockerd ]; do sleep 0.01; done
sleep 0.1
"""
# What the package's scripts do: the first hook of the machine, and one that replaces another.
SCRIPTS = os.path.dirname(os.path.abspath(__file__)) + '/../../pkg/debian/nvidia-container-toolkit.'
SCRIPT = """
script() { sed 's|=/run/|=run/|; s|/usr/bin/|usr/bin/|' %s$1 | sh -s $2; }
""" % SCRIPTS
HOOK = 'usr/bin/nvidia-container-runtime-hook'
STAMP = SCRIPT + """
mv %(hook)s hook; script preinst install; mv hook %(hook)s; script postinst configure; sleep 0.1
""" % {'hook': HOOK}
UPGRADE = SCRIPT + """
script preinst upgrade; touch %s; script postinst configure
""" % HOOK
NVIDIA = {'nvidia': {'path': 'nvidia-container-runtime'}}


def docker_says(version='28.5.1', runtimes=None, default='runc', cdi=True):
    """A docker client that shows what its daemon knows."""
    info = {'ServerVersion': version, 'DefaultRuntime': default, 'CDISpecDirs': ['/etc/cdi', '/var/run/cdi'] if cdi else [],
            'Runtimes': {'runc': {'path': 'runc'}, **(NVIDIA if runtimes is None else runtimes)}}
    return {'/usr/bin/docker': "#!/bin/sh\necho '%s'\n" % json.dumps(info)}


def running(daemon=None, **says):
    """A machine with docker, its file and what it knows."""
    file = {'runtimes': NVIDIA} if daemon is None else daemon
    return {**WITH_DOCKER, DAEMON: json.dumps(file), **docker_says(**says)}


machine('docker-in-order', None, files=running())
machine('docker-before-hook', 'dockerd was started before nvidia-container-runtime-hook', START + STAMP,
        files={**running(), **DOCKERD})
machine('docker-after-hook', None, STAMP + START, files={**running(), **DOCKERD})
machine('docker-before-upgrade', None, START + UPGRADE, files={**running(), **DOCKERD})
machine('docker-older-than-file', None, START + 'touch ' + HOOK, files={**running(), **DOCKERD})
machine('docker-not-restarted', 'dockerd does not know the runtime nvidia that', files=running(runtimes={}))
machine('docker-old-program', 'runtime nvidia is /opt/old', files=running(runtimes={'nvidia': {'path': '/opt/old'}}))
machine('docker-old-default', 'default runtime is runc', files=running({'runtimes': NVIDIA, 'default-runtime': 'nvidia'}))
machine('docker-default-unknown', 'the default runtime nvidia is not registered', files=running({'default-runtime': 'nvidia'}))
machine('docker-without-runtime', 'dockerd does not know the runtime nvidia', level='advice', files=running({}, runtimes={}))
machine('docker-runtime-elsewhere', None, files=running({}))
machine('docker-26-of-a-newcomer', 'dockerd does not know the runtime nvidia', level='advice', also=['docker\'s CDI is off'],
        files=running({}, runtimes={}, version='26.1.5+dfsg1', cdi=False))
machine('docker-26-without-cdi', 'docker\'s CDI is off', level='advice', files=running(version='26.1.5+dfsg1', cdi=False))
machine('docker-cdi-not-restarted', 'dockerd\'s CDI is off, and /etc/docker/daemon.json enables it',
        files=running({'runtimes': NVIDIA, 'features': {'cdi': True}}, version='26.1.5+dfsg1', cdi=False))
machine('docker-20', None, files=running(version='20.10.24+dfsg1', cdi=False))
machine('docker-first-hour', 'dockerd was started before nvidia-container-runtime-hook', START + STAMP, specification=False,
        also=['dockerd does not know the runtime nvidia', 'docker\'s CDI is off', 'no specification'],
        files={**running({}, runtimes={}, version='26.1.5+dfsg1', cdi=False), **DOCKERD})
machine('docker-denied', 'permission denied', level='advice', files={**WITH_DOCKER,
        '/usr/bin/docker': '#!/bin/sh\necho "permission denied while trying to connect" >&2; exit 1\n'})
machine('docker-down', 'Cannot connect to the Docker daemon', level='advice', files={**WITH_DOCKER,
        '/usr/bin/docker': '#!/bin/sh\necho \'{"ServerErrors": ["Cannot connect to the Docker daemon"]}\'\n'})
machine('docker-hangs', 'no answer within', level='advice', files={**WITH_DOCKER, '/usr/bin/docker': '#!/bin/sh\nwhile :; do :; done\n'})
machine('docker-is-podman', None, files={**WITH_DOCKER, '/usr/bin/docker': '#!/bin/sh\necho \'{"host": {}, "version": {}}\'\n'})


def without(name, files):
    """Files without a program."""
    return {path: text for path, text in files.items() if path not in (name, '/usr/bin/' + name)}


machine('no-specification', 'no specification has this machine\'s GPUs', level='advice', specification=False)
machine('no-cli', 'nvidia-container-cli is missing', files=without('nvidia-container-cli', WITH_DOCKER))
machine('no-runtime-program', 'nvidia-container-runtime is missing', also=['runtime nvidia is nvidia-container-runtime, which is missing'],
        files=without('nvidia-container-runtime', WITH_DOCKER))
machine('no-runtime-hook', 'without which docker has no option --gpus', level='advice',
        files=without('nvidia-container-runtime-hook', WITH_DOCKER))
machine('legacy-without-hook', 'which the runtime\'s mode legacy needs', also=['no option --gpus'],
        files={**without('nvidia-container-runtime-hook', WITH_DOCKER), **toml('nvidia-container-runtime', 'mode = "legacy"')})
machine('hook-not-executable', 'nvidia-cdi-hook is not executable', 'cp -p usr/bin/nvidia-cdi-hook x; mv x usr/bin/nvidia-cdi-hook; chmod 644 usr/bin/nvidia-cdi-hook')
machine('cli-elsewhere', '/opt/nvidia-container-cli is missing', files={**WITH_DOCKER, **toml(CLI, 'path = "/opt/nvidia-container-cli"')})
machine('cli-without-directory', 'nvidia-container-cli is missing', files={**WITH_DOCKER, **toml(CLI, 'path = "nvidia-container-cli"')})

# containerd's drop-in repeats the CRI plugin's section.
CRI = 'plugins."io.containerd.grpc.v1.cri"'
OURS = """version = 2
[%(cri)s]
sandbox_image = "pause:3.8"
[%(cri)s.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[%(cri)s.containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
""" % {'cri': CRI}


def drop_in(version, section):
    """A containerd with our drop-in, and a section of its main file."""
    main = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n[%s]\n%s\n' % (CRI, section)
    return {**TOOLKIT, **RUNC, '/usr/bin/containerd': program('containerd github.com/containerd/containerd %s x' % version),
            CONTAINERD: main, '/etc/containerd/conf.d/99-nvidia.toml': OURS}


machine('containerd-import', 'does not import', files={**drop_in('1.7.24', ''), CONTAINERD: 'version = 2\n'})
machine('drop-in', None, files=drop_in('1.7.24', 'sandbox_image = "pause:3.8"'))
machine('drop-in-hides-value', 'hides sandbox_image of /etc/containerd/config.toml', files=drop_in('1.7.24', 'sandbox_image = "pause:3.10"'))
machine('drop-in-hides-value-of-2', 'hides sandbox_image of', files=drop_in('2.1.4', 'sandbox_image = "pause:3.10"'))
machine('drop-in-hides-key', 'hides restrict_oom_score_adj of', files=drop_in('1.7.24', 'restrict_oom_score_adj = true'))
machine('containerd-2-merges', None, files=drop_in('2.1.4', 'restrict_oom_score_adj = true'))
machine('containerd-without-runtime', 'containerd does not know the runtime nvidia', level='advice', files={**TOOLKIT, **RUNC,
        '/usr/bin/containerd': program('containerd github.com/containerd/containerd 2.1.4 x'), CONTAINERD: 'version = 3\n'})
machine('containerd-of-docker', None, files={**running(), '/usr/bin/containerd': program('containerd containerd.io v2.1.4 x'),
                                             CONTAINERD: 'version = 2\ndisabled_plugins = ["cri"]\n'})

# A specification of an older driver, and copies.
STALE = """---
# generated by nvidia-ctk 1.20.0
# command: nvidia-ctk --quiet cdi generate
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
containerEdits:
  mounts:
  - {hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.1.1, containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.1.1}
"""
machine('spec-stale', 'nvidia.yaml: was made for driver 550.1.1; the machine has 535.261.03', specification=False,
        files={'/var/run/cdi/nvidia.yaml': STALE})
machine('spec-stale-and-no-node', '/dev/nvidia1 is missing', 'rm dev/nvidia1', specification=False,
        also=['was made for driver 550.1.1'], files={'/var/run/cdi/nvidia.yaml': STALE})
MANY = spec('nvidia.com/gpu', *map(str, range(30)))
machine('spec-copied', 'device nvidia.com/gpu=0 and 29 more are in /etc/cdi/a.json and in /etc/cdi/b.json, so engines ignore them',
        specification=False, files={'/etc/cdi/a.json': MANY, '/etc/cdi/b.json': MANY})
machine('spec-hidden', 'nvidia.com/gpu=of-this-test is in /etc/cdi/old.json and in /var/run/cdi/gpu.json, which engines prefer', level='advice',
        files={'/etc/cdi/old.json': spec('nvidia.com/gpu', 'other', 'of-this-test')})
machine('spec-broken', 'nvidia.yaml: ', specification=False, files={'/etc/cdi/nvidia.yaml': 'cdiVersion: [\n'})


# What a repair must know: other names, files and places; and engines that have not read their files.
machine('uvm-not-loaded', 'the module nvidia-uvm is not loaded', setup="""
cp $DEVICES loadable-devices; sed -i '/nvidia-uvm/d' $DEVICES; rm dev/nvidia-uvm dev/nvidia-uvm-tools""")
machine('no-nodes-nor-uvm', '/dev/nvidiactl is missing', also=['the module nvidia-uvm is not loaded'], setup="""
cp $DEVICES loadable-devices; sed -i '/nvidia-uvm/d' $DEVICES; rm dev/nvidiactl dev/nvidia-uvm*""")
machine('no-gpu-node-modprobe', '/dev/nvidia1 is missing', 'rm dev/nvidia1', files=NVIDIA_MODPROBE)
machine('no-caps-nodes-modprobe', '/dev/nvidia-caps is missing', 'rm -r dev/nvidia-caps', files=NVIDIA_MODPROBE)
machine('no-cache', '/etc/ld.so.cache cannot be read', 'rm etc/ld.so.cache', ldconfig=False)
OTHER_PLACE = 'mkdir -p usr/lib64; mv %s/*535* usr/lib64; ldconfig -r .; ldconfig -N -r . -n /usr/lib64\n' % LIB
machine('cache-of-before', '/usr/lib64/libcuda.so.1 is not in the loader\'s cache', OTHER_PLACE + 'echo /usr/lib64 > etc/ld.so.conf.d/x.conf',
        also=['libnvidia-ml.so.1 is not in'], ldconfig=False)
machine('directory-unknown', '/usr/lib64/libcuda.so.1 is not in the loader\'s cache', OTHER_PLACE,
        also=['libnvidia-ml.so.1 is not in'], ldconfig=False)
machine('runc-forgets', 'this runc forgets devices', 'mkdir -p run/systemd/system', files={'/usr/bin/runc': program('runc version 1.1.5+ds1')})
# A container with that GPU has run since the boot.
machine('runc-forgets-one', 'in /dev/char, as /dev/nvidia', 'mkdir -p run/systemd/system dev/char; ln -s ../nvidiactl dev/char/195:255',
        files={'/usr/bin/runc': program('runc version 1.1.5+ds1')})
machine('runc-forgets-nothing', None, 'mkdir -p run/systemd/system', files={'/usr/bin/runc': program('runc version 1.2.5')})
machine('docker-second-runtime', 'runtime nvidia-legacy is /no/such', files={**WITH_DOCKER, DAEMON: json.dumps(
    {'runtimes': {**NVIDIA, 'nvidia-legacy': {'path': '/no/such'}}})})
machine('config-elsewhere', 'the modes are auto', options=['--config=/opt/my toolkit/config.toml'],
        files={'/opt/my toolkit/config.toml': '[nvidia-container-runtime]\nmode = "legcay"\n'})
machine('config-named-and-missing', 'config.toml: /opt/config.toml: file does not exist', options=['--config=/opt/config.toml'])
machine('cdi-other-kind', 'no specification has devices of example.com/card', files=toml(
    'nvidia-container-runtime', 'mode = "cdi"\nmodes.cdi.default-kind = "example.com/card"'))
machine('cdi-without-driver', 'the module nvidia is not loaded', NO_NODES, proc_driver=False, specification=False,
        also=['no specification has devices of nvidia.com/gpu'], files=toml('nvidia-container-runtime', 'mode = "cdi"'))
machine('yml-beside-yaml', '/etc/cdi/gpus.yml is not read', files={'/etc/cdi/gpus.yml': spec('v.com/cc', 'x'),
                                                                 '/etc/cdi/gpus.yaml': spec('v.com/cc', 'x')})
machine('yml-with-blanks', '/etc/cdi/my gpus.yml is not read', files={'/etc/cdi/my gpus.yml': spec('v.com/cc', 'x')})
BARE_HOOK = """---
# generated by nvidia-ctk 1.17.0
# command: sudo cdi generate
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- {name: "0", containerEdits: {hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, chmod]}]}}
"""
machine('spec-hook-of-ours', 'device 0: now device node', specification=False, also=['has no env'],
        files={'/var/run/cdi/nvidia.yaml': BARE_HOOK})
machine('containerd-imports-another', 'containerd\'s runtime nvidia is /no/nvidia-container-runtime', files={
    **drop_in('1.7.24', ''), '/etc/containerd/conf.d/99-nvidia.toml': 'version = 2\n',
    '/etc/containerd/conf.d/gpus.toml': OURS.replace('/usr/bin', '/no')})
machine('another-drop-in-hides', 'conf.d/gpus.toml hides restrict_oom_score_adj', files={
    **drop_in('1.7.24', 'restrict_oom_score_adj = true'), '/etc/containerd/conf.d/99-nvidia.toml': 'version = 2\n',
    '/etc/containerd/conf.d/gpus.toml': OURS})
machine('containerd-2-2', None, files={**drop_in('2.2.1', ''), CONTAINERD: 'version = 2\n'})
CRICTL = {'/usr/bin/crictl': """#!/bin/sh
[ ! -e /restarted ] || ours=', "nvidia": {}'
echo '{"config": {"containerd": {"runtimes": {"runc": {}'$ours'}}}}'
"""}
machine('containerd-not-restarted', 'containerd does not know the runtime nvidia that', 'mkdir run/containerd; touch run/containerd/containerd.sock',
        files={**drop_in('1.7.24', ''), **CRICTL})
machine('containerd-restarted', None, 'mkdir run/containerd; touch run/containerd/containerd.sock restarted',
        files={**drop_in('1.7.24', ''), **CRICTL})
CRIO = '/etc/crio/crio.conf.d/99-nvidia.toml'


def crio(path):
    """A CRI-O with our runtime that has not read its files."""
    text = '[crio.runtime.runtimes.nvidia]\nruntime_path = "%s"\nruntime_type = "oci"\n' % path
    return {**TOOLKIT, **RUNC, CRIO: text, '/usr/bin/crio': """#!/bin/sh
[ ! -e /restarted ] || cat %s
""" % CRIO}


machine('crio', None, files=crio('/usr/bin/nvidia-container-runtime'))
machine('crio-program', 'CRI-O\'s runtime nvidia is /no/nvidia-container-runtime', files=crio('/no/nvidia-container-runtime'))
machine('crio-syntax', 'line 1, column 5', files={**crio(''), CRIO: 'a = \n'})
machine('crio-not-restarted', 'CRI-O does not know the runtime nvidia that', 'mkdir run/crio; touch run/crio/crio.sock',
        files=crio('/usr/bin/nvidia-container-runtime'))
machine('crio-without-runtime', 'CRI-O does not know the runtime nvidia', level='advice', files=without(CRIO, crio('')))


# What stops containers although driver and engines are in order: settings that none survives, programs of before, and
# directories that an engine does not read; and what looks wrong and is not. First the table of settings.
RUNTIME_ = 'nvidia-container-runtime'
for name, setting, first, level in (
        ('user', toml(CLI, 'user = "nobdy:vdieo"'), 'nvidia-container-cli.user is "nobdy:vdieo", and there is no user nobdy', 'WRONG'),
        ('group', toml(CLI, 'user = "root:vdieo"'), 'there is no group vdieo', 'WRONG'),
        ('ldcache', toml(CLI, 'ldcache = "/nonexistent"'), 'nvidia-container-cli.ldcache is /nonexistent', 'WRONG'),
        ('hook-path', {CONFIG_TOML: '[%s]\nmode = "legacy"\n[%s-hook]\npath = "/opt/hook"\n' % (RUNTIME_, RUNTIME_)},
         '/opt/hook is missing, which the runtime\'s mode legacy needs', 'WRONG'),
        ('variables-ignored', {CONFIG_TOML: 'accept-nvidia-visible-devices-envvar-when-unprivileged = false\n'},
         'unprivileged containers request no GPU by variables', 'advice')):
    machine(name, first, level=level, files={**WITH_DOCKER, **setting, '/etc/passwd': 'root:x:0:0::/:/bin/sh\n',
                                             '/etc/group': 'root:x:0:\nvideo:x:44:\n'})
machine('user-in-order', None, files={**WITH_DOCKER, **toml(CLI, 'user = "root:video"'), '/etc/passwd': 'root:x:0:0::/:/bin/sh\n',
                                      '/etc/group': 'video:x:44:\n'})
OLD_KEYS = '[%s]\nexperimental = true\ndiscover-mode = "legacy"\n' % RUNTIME_
machine('old-keys', 'unknown key', level='advice', more=1, files={**WITH_DOCKER, CONFIG_TOML: OLD_KEYS})
machine('old-keys-and-root', 'the driver is in /', more=2, files={
    **WITH_DOCKER, CONFIG_TOML: OLD_KEYS + '[%s]\nroot = "/run/nvidia/driver"\n' % CLI})
for name in ('nvidia-container-cli', 'nvidia-container-runtime-hook'):
    machine('old-' + name, name + ' is installed twice: /usr/local/sbin/' + name, level='advice',
            files={**WITH_DOCKER, '/usr/local/sbin/' + name: program('')})
machine('docker-elsewhere', 'DOCKER_HOST is tcp://127.0.0.1:1', level='advice', env={'DOCKER_HOST': 'tcp://127.0.0.1:1'}, files=running())
machine('docker-directories', 'docker reads specifications in /opt/cdi only', files={
    **running(), '/usr/bin/docker': docker_says()['/usr/bin/docker'].replace('"/etc/cdi", "/var/run/cdi"', '"/opt/cdi"')})
machine('podman-directories', 'podman reads specifications in /opt/cdi only', level='advice', files={
    '/usr/bin/podman': program('podman version 5.4.2'), '/etc/containers/containers.conf': '[engine]\ncdi_spec_dirs = ["/opt/cdi"]\n'})
machine('containerd-directories', 'containerd reads specifications in /opt/cdi only', files={
    **drop_in('1.7.24', ''), CONTAINERD: 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n[%s]\ncdi_spec_dirs = ["/opt/cdi"]\n' % CRI,
    '/etc/containerd/conf.d/99-nvidia.toml': OURS.replace('sandbox_image = "pause:3.8"', 'cdi_spec_dirs = ["/opt/cdi"]')})
OTHER_FILE = '/etc/docker/other.json'
UNIT = {'/usr/lib/systemd/system/docker.service': '[Service]\nExecStart=/usr/bin/dockerd --config-file=%s\n' % OTHER_FILE}
machine('docker-config-file', None, files={**running({}), **UNIT, OTHER_FILE: json.dumps({'runtimes': NVIDIA})})
machine('docker-config-file-without', 'dockerd, which reads /etc/docker/other.json', level='advice',
        files={**without(DAEMON, running(runtimes={})), **UNIT, OTHER_FILE: '{}'})
REFRESH = 'Id=nvidia-cdi-refresh.service\nLoadState=loaded\nUnitFileState=%s\nActiveState=%s\nSubState=%s\nResult=%s\n'
BOOTED = 'mkdir -p run/systemd/system'
machine('refresh', None, BOOTED, files={'/units': REFRESH % ('enabled', 'inactive', 'dead', 'success')})
machine('refresh-fails', 'nvidia-cdi-refresh.service fails', BOOTED, files={
    '/units': REFRESH % ('enabled', 'activating', 'auto-restart', 'exit-code')})
machine('refresh-disabled', 'nvidia-cdi-refresh.service is disabled', BOOTED, level='advice', files={
    '/units': REFRESH % ('disabled', 'inactive', 'dead', 'success')})
machine('private-devices', 'docker.service has PrivateDevices=yes', BOOTED, files={
    **running(), '/units': 'Id=docker.service\nLoadState=loaded\nPrivateDevices=yes\n'})
machine('group-of-nodes', 'you may not open /dev/nvidiactl, which is for root and the group video', run_as=1000,
        setup='chmod 660 dev/nvidia[01] dev/nvidiactl; chgrp 44 dev/nvidia[01] dev/nvidiactl', files={'/etc/group': 'video:x:44:\n'})
machine('no-ldconfig', None, 'rm -f sbin/ldconfig usr/sbin/ldconfig')
machine('config-dangling', 'config.toml: file does not exist', 'mkdir -p etc/nvidia-container-runtime; ln -s /no/such etc/nvidia-container-runtime/config.toml')
machine('no-query-program', 'nvc-query', 'rm usr/bin/nvc-query', files=WITH_DOCKER)
machine('left-over-library', None, 'touch %s/libcuda.so.470.1.1' % LIB)
machine('mps', 'an MPS control daemon has /tmp/nvidia-mps', level='advice', setup="""
mkdir -p tmp/nvidia-mps; rm -f tmp/nvidia-mps/control; python3 -c "
import socket
socket.socket(socket.AF_UNIX).bind('tmp/nvidia-mps/control')"
""")
machine('persistence-killed', 'nvidia-persistenced does not run, although', level='advice', files={
    '/usr/lib/systemd/system/nvidia-persistenced.service': ''}, setup="""
rm run/nvidia-persistenced/socket; python3 -c "
import socket
socket.socket(socket.AF_UNIX).bind('run/nvidia-persistenced/socket')"
""")
machine('stale-and-hidden', 'is in /etc/cdi/nvidia.yaml and in /var/run/cdi/gpu.json, which engines prefer', level='advice', files={
    '/etc/cdi/nvidia.yaml': STALE.replace('"0"', 'of-this-test')})
GONE = {'mounts': [{'hostPath': '/no/lib', 'containerPath': '/x'}]}
machine('claims-of-pods', None, files={
    '/var/run/cdi/k8s.gpu.nvidia.com-claim_1.json': spec('k8s.gpu.nvidia.com/claim', 'x', edits=GONE)})

with open(os.environ['DOCTOR_SAYS'], 'w', encoding='utf-8') as table:
    json.dump(SAYS, table)
