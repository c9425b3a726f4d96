"""Speaks gRPC as the kubelet does, with the protocols that Kubernetes publishes.

Reads calls from standard input, each a line of JSON {socket, method, request, authority, answers}, and answers each
with a line of JSON: a list of messages, or {code, details}. The argument is a FileDescriptorSet. A call with
{meanwhile: CALL} is made at the same time as that one, and has two answers. One with {until: PATH} is cut off, with its
connection, as soon as there is such a file, or after a second if the path is empty; the answer is whether it had none.
{cancelled: [CALL...], calls: [CALL...], locked: PATH} makes the first calls while that file is locked, cancels them, makes the
others before it is unlocked, and answers as these are answered.

{serve: SOCKET, ...} serves v1.PodResourcesLister at that socket from then on, and answers List with
  {pods: [...], once: PATH}     these pods, from the moment when there is such a file
  {message: HEX, times: N}      these bytes
  {refuse: CODE}                that status
  {hang: true}                  nothing
  {delay: SECONDS, ...}         that, so much later
"""

import fcntl
import json
import os
import sys
import time
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


def begun(call):
    service, name = call["method"].strip("/").rsplit("/", 1)
    method = pool.FindServiceByName(service).FindMethodByName(name)
    request = json_format.ParseDict(call["request"], factory.GetPrototype(method.input_type)())
    answer = factory.GetPrototype(method.output_type)
    path = f"/{service}/{name}"
    to = channel(call["socket"], call["authority"])
    coding = type(request).SerializeToString, answer.FromString
    if "answers" not in call:
        return to.unary_unary(path, *coding).future(request, timeout=PATIENCE)
    stream = to.unary_stream(path, *coding)(request, timeout=PATIENCE)
    answers = [next(stream) for _ in range(call["answers"])]
    stream.cancel()
    return answers


def called(call):
    one = begun(call)
    if "answers" in call:
        return one
    others = [begun(call["meanwhile"])] if "meanwhile" in call else []
    return [one.result(), *(other.result() for other in others)]


def cut(call):
    """Returns true if the call had no answer yet."""
    one = begun(call)
    if not call["until"]:
        time.sleep(1)
    while call["until"] and not os.path.exists(call["until"]) and not one.done():
        time.sleep(0.001)
    had_none = not one.done()
    channels.pop((call["socket"], call["authority"])).close()
    return had_none


def cancelled(how):
    with open(how["locked"], "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = [begun(call) for call in how["cancelled"]]
        time.sleep(1)
        for call in first:
            call.cancel()
        others = [begun(call) for call in how["calls"]]
        time.sleep(1)
    return [call.result() for call in others]


def listed(_, context):
    answer = dict(served)
    time.sleep(answer.get("delay", 0))
    while "hang" in answer and context.is_active():
        time.sleep(0.05)
    if "refuse" in answer:
        context.abort(grpc.StatusCode[answer["refuse"]], "as the test said")
    if "message" in answer:
        return bytes.fromhex(answer["message"]) * answer["times"]
    if os.path.exists(answer.get("once", "/")):
        served.pop("once", None)
        pods = answer.get("pods", [])
    else:
        pods = []
    message = factory.GetPrototype(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))
    return json_format.ParseDict({"pod_resources": pods}, message()).SerializeToString()


def serve(how):
    if not os.path.exists(how["serve"]):
        server = grpc.server(futures.ThreadPoolExecutor(8))
        methods = {"List": grpc.unary_unary_rpc_method_handler(listed)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)])
        server.add_insecure_port("unix:" + how["serve"])
        server.start()
        servers.append(server)
    served.clear()
    served.update(how)


served, servers = {}, []
for line in sys.stdin:
    try:
        call = json.loads(line)
        if "until" in call:
            written = cut(call)
        else:
            how = serve if "serve" in call else cancelled if "cancelled" in call else called
            answers = how(call) or []
            written = [json_format.MessageToDict(one, including_default_value_fields=True, preserving_proto_field_name=True) for one in answers]
    except grpc.RpcError as error:
        written = {"code": error.code().name, "details": error.details()}
    print(json.dumps(written), flush=True)
