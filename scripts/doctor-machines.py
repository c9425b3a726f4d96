"""Broken machines for `nvidia-ctk doctor`, one case each: the fault, and the expected diagnosis.

Started by scripts/test-doctor.sh on the machines of the conformance suite. A machine without a fault must have no finding.
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
machine('node-is-file', ['/dev/nvidiactl is no device'], 'rm dev/nvidiactl; touch dev/nvidiactl')
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
machine('spec-mode', ['can be read by root only'], 'chmod 600 etc/cdi/a.json', files={'/etc/cdi/a.json': spec('v.com/cc', 'x')})
machine('mig-empty', ['has no MIG devices'], mock='migcount=0')
machine('mig-minors', ['mig-minors is missing'], 'rm $PROC/nvidia-caps/mig-minors')
machine('no-hook', ['nvidia-cdi-hook is not in PATH'], 'rm usr/bin/nvidia-cdi-hook')
machine('persistence', ['does not run'], 'rm run/nvidia-persistenced/socket')
machine('two-faults', ['nvidia-uvm is missing', 'daemon.json: EOF'], 'rm dev/nvidia-uvm', files={DAEMON: '{"a":'})

with open(os.environ['DOCTOR_SAYS'], 'w', encoding='utf-8') as table:
    json.dump(SAYS, table)
