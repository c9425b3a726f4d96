"""A device plugin that gives the devices of its arguments, without anything of them: device-plugin.py RESOURCE ID...

While /run/plugin-hold exists, Allocate does not return; it says in /run/plugin-asked that it was called.
"""

import os
import sys
import threading
import time
from concurrent import futures

import grpc

DIRECTORY = "/var/lib/kubelet/device-plugins"
SOCKET = "test.sock"


def field(number, data):
    data = data.encode() if isinstance(data, str) else data
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def devices(_request, _context):
    yield b"".join(field(1, field(1, device) + field(2, "Healthy")) for device in sys.argv[2:])
    threading.Event().wait()


def allocated(_request, _context):
    open("/run/plugin-asked", "w").close()
    while os.path.exists("/run/plugin-hold"):
        time.sleep(0.01)
    return field(1, b"")


def nothing(_request, _context):
    return b""


methods = {
    "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(nothing),
    "ListAndWatch": grpc.unary_stream_rpc_method_handler(devices),
    "Allocate": grpc.unary_unary_rpc_method_handler(allocated),
}
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)])
server.add_insecure_port(f"unix:{DIRECTORY}/{SOCKET}")
server.start()
kubelet = grpc.insecure_channel(f"unix:{DIRECTORY}/kubelet.sock")
kubelet.unary_unary("/v1beta1.Registration/Register")(field(1, "v1beta1") + field(2, SOCKET) + field(3, sys.argv[1]), timeout=30)
server.wait_for_termination()
