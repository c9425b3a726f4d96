"""Speaks gRPC as the kubelet does, with the protocols that Kubernetes publishes.

Reads calls from standard input, each a line of JSON {socket, method, request, authority, answers}, and answers each
with a line of JSON: a list of messages, or {code, details}. The argument is a FileDescriptorSet.

{serve, device, once} serves the list of the devices of pods at a socket: from the moment when the file `once` exists, a
device plugin has given that device to a pod.
"""

import json
import os
import sys
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

PATIENCE = 45  # seconds, as the kubelet

pool = descriptor_pool.DescriptorPool()
published = descriptor_pb2.FileDescriptorSet()
with open(sys.argv[1], "rb") as file:
    published.ParseFromString(file.read())
for file in published.file:
    pool.Add(file)
factory = message_factory.MessageFactory(pool)
channels = {}  # a kubelet keeps its connections


def channel(socket, authority):
    key = socket, authority
    if key not in channels:
        channels[key] = grpc.insecure_channel("unix:" + socket, [("grpc.default_authority", authority)])
    return channels[key]


def called(call):
    service, name = call["method"].strip("/").rsplit("/", 1)
    method = pool.FindServiceByName(service).FindMethodByName(name)
    request = json_format.ParseDict(call["request"], factory.GetPrototype(method.input_type)())
    answer = factory.GetPrototype(method.output_type)
    path = f"/{service}/{name}"
    to = channel(call["socket"], call["authority"])
    coding = type(request).SerializeToString, answer.FromString
    if "answers" not in call:
        return [to.unary_unary(path, *coding)(request, timeout=PATIENCE)]
    stream = to.unary_stream(path, *coding)(request, timeout=PATIENCE)
    answers = [next(stream) for _ in range(call["answers"])]
    stream.cancel()
    return answers


plugin = {}


def listed(_request, _context):
    plugin["given"] = plugin["given"] or os.path.exists(plugin["once"])
    answer = factory.GetPrototype(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))()
    if plugin["given"]:
        container = answer.pod_resources.add(name="p", namespace="other").containers.add(name="c")
        container.devices.add(resource_name="example.com/gpu", device_ids=[plugin["device"]])
    return answer


def serve(call):
    if "serve" not in plugin:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        lister = grpc.unary_unary_rpc_method_handler(listed, response_serializer=lambda answer: answer.SerializeToString())
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": lister})])
        server.add_insecure_port("unix:" + call["serve"])
        server.start()
        plugin["server"] = server
    plugin.update(call, given=False)
    return []


for line in sys.stdin:
    try:
        call = json.loads(line)
        answers = serve(call) if "serve" in call else called(call)
        written = [json_format.MessageToDict(one, including_default_value_fields=True, preserving_proto_field_name=True) for one in answers]
    except grpc.RpcError as error:
        written = {"code": error.code().name, "details": error.details()}
    print(json.dumps(written), flush=True)
