"""Cases of nvidia-docker's conformance suite with a node of the driver where the suite has an empty file.

conformance.sh copies the recorded results: they equal upstream's.
"""
import os
import stat
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '../../../../shared/conformance-docker1'))
from harness import get, plugin, put, wrapper  # noqa: E402

TOOLS = '/dev/nvidia-uvm-tools'


def node(path):
    """Makes the node of unified memory for debuggers."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(240, 1))


wrapper('w-uvm-tools-node', 'run', 'cuda', files={TOOLS: node})
plugin('p-uvm-tools-node', get('/docker/cli'), put(TOOLS, node), get('/docker/cli'))
