"""Broken machines for `nvidia-ctk doctor`, one case each: the fault, and the expected diagnosis.

Started by doctor.sh on the machines of the conformance suite. A machine without a fault must have no finding.
"""
import os

from harness import *
from pieces import *

SAYS = {}


def machine(name, says, setup='', **world):
    """Defines a machine; `says` are texts of the findings, one for each fault."""
    SAYS[name] = says
    case('doctor-' + name, 'doctor', stdout='text', setup=setup, ldconfig=True, **world)


CONFIG_TOML = '/etc/nvidia-container-runtime/config.toml'
DAEMON = '/etc/docker/daemon.json'

machine('healthy', [])
machine('no-driver', ['libcuda.so.1 is missing', 'libnvidia-ml.so.1 is missing', 'nvidiactl is missing'], machine='empty')
machine('no-uvm-node', ['nvidia-uvm is missing'], 'rm dev/nvidia-uvm')
machine('old-uvm-node', ['is device 511:0'], 'rm dev/nvidia-uvm; mknod -m 666 dev/nvidia-uvm c 511 0')
machine('no-gpu-node', ['/dev/nvidia1 is missing'], 'rm dev/nvidia1')
machine('node-for-root', ['only root may use /dev/nvidiactl'], 'chmod 600 dev/nvidiactl')
machine('node-is-file', ['/dev/nvidiactl is not a device'], 'rm dev/nvidiactl; touch dev/nvidiactl')
machine('mismatch', ['of driver 550.1.2'], 'sed -i s/535.261.03/550.1.2/ $PROC/nvidia/version')
machine('nvml', ['driver not loaded'], mock='init=9')
machine('config-syntax', ['config.toml'], files={CONFIG_TOML: 'a = \n'})
machine('config-key', ['did you mean disable-require'], files={CONFIG_TOML: 'disable-requir = true\n'})
machine('docker-syntax', ['daemon.json: EOF'], files={DAEMON: '{"a":'})
machine('docker-runtime', ['/no/such, which is missing'], files={DAEMON: '{"runtimes":{"nvidia":{"path":"/no/such"}}}'})
machine('containerd-syntax', ['line 1, column 11'], files={'/etc/containerd/config.toml': 'version = \n'})
machine('containerd-import', ['does not import'], files={'/etc/containerd/config.toml': 'version = 2\n',
                                                         '/etc/containerd/conf.d/99-nvidia.toml': 'version = 2\n'})
machine('spec-file', ['/no/lib is missing'], files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'mounts': [{'hostPath': '/no/lib', 'containerPath': '/x'}]})})
machine('spec-major', ['is recorded as 400:0'], files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'deviceNodes': [{'path': '/dev/nvidia-uvm', 'major': 400}]})})
machine('spec-conflict', ['so it does not exist'], files={'/etc/cdi/a.json': spec('v.com/cc', 'x'),
                                                          '/etc/cdi/b.json': spec('v.com/cc', 'x')})
machine('spec-hook', ['hook /bin/true has no env'], files={'/etc/cdi/a.json': spec(
    'v.com/cc', 'x', edits={'hooks': [{'hookName': 'createContainer', 'path': '/bin/true'},
                                      {'hookName': 'createContainer', 'path': '/bin/sh', 'env': ['A=b']},
                                      {'hookName': 'prestart', 'path': '/bin/sh'}]})})
machine('spec-mode', ['can be read by root only'], 'chmod 600 etc/cdi/a.json', files={'/etc/cdi/a.json': spec('v.com/cc', 'x')})
machine('mig-empty', ['has no MIG devices'], mock='migcount=0')
machine('mig-minors', ['mig-minors is missing'], 'rm $PROC/nvidia-caps/mig-minors')
machine('no-hook', ['nvidia-cdi-hook is not in PATH'], 'rm usr/bin/nvidia-cdi-hook')
machine('persistence', ['does not run'], 'rm run/nvidia-persistenced/socket')
machine('two-faults', ['nvidia-uvm is missing', 'daemon.json: EOF'], 'rm dev/nvidia-uvm', files={DAEMON: '{"a":'})

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
TOOLKIT = {'/usr/bin/nvidia-container-runtime': program(''), '/usr/bin/nvidia-container-runtime-hook': program('')}
RUNC = {'/usr/bin/runc': program('runc version 1.1.15')}
WITH_DOCKER = {DAEMON: '{"runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}', **DOCKER, **TOOLKIT, **RUNC}
CLI = 'nvidia-container-cli'
ENFORCING = 'mkdir -p sys/fs/selinux; echo 1 > sys/fs/selinux/enforce'
OLD_HOOK = '{"version":"1.0.0","hook":{"path":"/usr/bin/nvidia-container-toolkit"},"when":{"always":true},"stages":["prestart"]}'

machine('nouveau', ['nouveau has the GPUs'], PCI + NO_NODES + 'pci 0000:3b:00.0 nouveau', proc_driver=False)
machine('vfio', ['vfio-pci has the GPU 0000:3b:00.0'], PCI + NO_NODES + 'pci 0000:3b:00.0 vfio-pci', proc_driver=False)
machine('not-loaded', ['the module nvidia is not loaded'], NO_NODES, proc_driver=False)
machine('kernel-updated', ['no module nvidia for this kernel'], NO_NODES + '''
mkdir -p lib/modules/$KERNEL; echo kernel/drivers/net/dummy.ko: > lib/modules/$KERNEL/modules.dep''', proc_driver=False)
machine('secure-boot', ['Secure Boot'], NO_NODES + '''
mkdir -p sys/firmware/efi/efivars
printf '\\006\\000\\000\\000\\001' > sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c''', proc_driver=False)
machine('no-gpu', ['no NVIDIA GPU on its PCI bus'], '''
mkdir -p sys/bus/pci/devices/0000:00:00.0; echo 0x8086 > sys/bus/pci/devices/0000:00:00.0/vendor''',
        machine='empty', proc_driver=False)
machine('lost', ['gpu is lost'], mock='lost=0')
machine('fabric', ['nvidia-fabricmanager does not run'],
        'mknod -m 666 dev/nvidia-nvswitch0 c 238 0; rm -rf run/nvidia-fabricmanager')
machine('stub', ['/usr/local/cuda/lib64/stubs/libcuda.so.1, a stub'], '''
mkdir -p usr/local/cuda/lib64/stubs; cp %s/libcuda.so.535.261.03 usr/local/cuda/lib64/stubs/libcuda.so
echo /usr/local/cuda/lib64/stubs > etc/stubs; cat etc/ld.so.conf >> etc/stubs; mv etc/stubs etc/ld.so.conf''' % LIB)
machine('only-32-bit', ['libcuda.so.1 is missing'], 'rm %s/libcuda.so.535.261.03' % LIB)
machine('no-caps-nodes', ['/dev/nvidia-caps is missing'], 'rm -r dev/nvidia-caps')
machine('root-left-over', ['the driver is in /'], files=toml(CLI, 'root = "/run/nvidia/driver"'))
machine('root-not-set', ['the driver is in /run/nvidia/driver'], machine='driver-container')
machine('no-cgroups', ['no-cgroups is true'], files={**WITH_DOCKER, **toml(CLI, 'no-cgroups = true')})
machine('ldconfig', ['/opt/ldconfig is missing'], files=toml(CLI, 'ldconfig = "@/opt/ldconfig"'))
machine('csv-on-a-pc', ['not a Jetson'], files=toml('nvidia-container-runtime', 'mode = "csv"'))
machine('cdi-without', ['no specification has devices of nvidia.com/gpu'], files=toml('nvidia-container-runtime', 'mode = "cdi"'))
machine('mode', ['the modes are auto'], files=toml('nvidia-container-runtime', 'mode = "legcay"'))
machine('annotation-prefixes', ['annotations count only'],
        files=toml('nvidia-container-runtime.modes.cdi', 'annotation-prefixes = ["example.com/"]'))
machine('annotations-accepted', [], files={CONFIG_TOML: '''accept-annotations = true
accept-cdi-kinds = ["example.com/thing"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["example.com/"]
'''})
machine('cdi-off', ['CDI is switched off'], files={CONTAINERD: '''version = 2
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = false # as before
'''})
machine('yml', ['/etc/cdi/nvidia.yml is not read'], files={'/etc/cdi/nvidia.yml': spec('nvidia.com/gpu', '0')})
machine('no-runtime', ['none of nvidia-container-runtime.runtimes exists'],
        files={path: text for path, text in WITH_DOCKER.items() if path not in RUNC})
machine('not-installed', ['docker is installed, and neither'], files=DOCKER)
machine('snap', ['docker is a snap'], 'mkdir -p snap/bin; ln -s /usr/bin/snap snap/bin/docker')
machine('old-hook', ['hooks.d/oci-nvidia-hook.json runs /usr/bin/nvidia-container-toolkit'],
        files={'/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json': OLD_HOOK})
machine('cri-disabled', ['disables the CRI plugin'],
        files={**TOOLKIT, **RUNC, **containerd('/usr/bin/nvidia-container-runtime', 'disabled_plugins = ["cri"]\n')})
machine('containerd-program', ['containerd\'s runtime is /usr/local/nvidia/toolkit/nvidia-container-runtime'],
        files=containerd('/usr/local/nvidia/toolkit/nvidia-container-runtime'))
machine('selinux', ['SELinux does not let containers'], ENFORCING, files={'/usr/bin/podman': program('podman version 5.4.2')})
machine('wsl-without', ['libdxcore.so is missing'], 'mknod -m 666 dev/dxg c 10 125', machine='empty', proc_driver=False)

machine('in-a-driver-container', [], machine='driver-container', files=toml(CLI, 'root = "/run/nvidia/driver"'))
machine('wsl', [], WSL_WORLD['setup'] + 'cp %s/libnvidia-ml.so.535.261.03 .%s/libnvidia-ml.so.1' % (LIB, STORE),
        files=WSL_FILES, env=WSL_WORLD['env'])
machine('jetson', [], CSV, machine='empty', files=CSV_FILES, proc_driver=False)
machine('with-docker', [], files=WITH_DOCKER)
machine('docker-under-selinux', [], ENFORCING, files=WITH_DOCKER)
machine('podman-alone', [], run_as=1000, files={'/usr/bin/podman': program('podman version 5.4.2')})
machine('cgroup-1', [], 'mkdir -p sys/fs/cgroup/devices sys/fs/cgroup/memory')
machine('without-persistence', [], 'rm -rf usr/bin/nvidia-persistenced run/nvidia-persistenced')
machine('nodes-of-a-group', [], 'chmod 660 dev/nvidia[01] dev/nvidiactl; chgrp 44 dev/nvidia[01] dev/nvidiactl')
machine('ubuntus-ldconfig', [], files=toml(CLI, 'ldconfig = "@/sbin/ldconfig.real"'))
machine('other-vendor', [], files={'/etc/cdi/amd.json': spec('amd.com/gpu', '0')})

with open(os.environ['DOCTOR_SAYS'], 'w', encoding='utf-8') as table:
    json.dump(SAYS, table)
