"""Cases of nvidia-ctk's conformance suite on a machine whose /proc/devices lists the drivers of the nodes.

On the suite's own machine, nothing says that the nodes are devices of GPUDirect Storage, GDRCopy and NVSwitch.
ctk.py copies the recorded results: they equal upstream's.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '../../../../shared/conformance-ctk'))
from harness import *  # noqa: E402,F401,F403
from pieces import *  # noqa: E402,F401,F403

# The driver of switches makes all their nodes.
NODES = FABRIC.replace('nvidia-nvswitchctl c 195 255', 'nvidia-nvswitchctl c 238 255')  # noqa: F405
DRIVERS = NODES + "sed -i 's/^Character devices:/&\\n236 nvidia-fs\\n237 gdrdrv\\n238 nvidia-nvswitch/' $DEVICES\n"

generate('mode-gds-with-drivers', '--mode=gds', '--class=gds', setup=DRIVERS)  # noqa: F405
generate('mode-gdrcopy-with-drivers', '--mode=gdrcopy', setup=DRIVERS)  # noqa: F405
generate('mode-nvswitch-with-drivers', '--mode=nvswitch', setup=DRIVERS)  # noqa: F405
