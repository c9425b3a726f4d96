"""Answers as an API server, as far as the driver asks: over plain HTTP, or over TLS if it has an argument, a file for the
certificate of its authority.

Prints its port. Reads commands from standard input, each a line of JSON, and answers each with a line:
  {"put": PATH, "object": OBJECT}   stores an object          {"get": PATH}      an object, or null
  {"list": PREFIX}                  the objects below it      {"remove": PATH}   deletes an object
  {"next": [STATUS, ...]}           answers the next calls with these; 0 hangs up, -1 is never answered; a text is sent as it is
  {"drop": [NAME, ...]}             forgets these attributes of devices, as a server whose feature gates are off
  {"delay": SECONDS}                answers this much later
  {"open": false}                   refuses connections, and ends those that there are; true: listens again
  {"end": STATUS}                   ends all watches, with an error event if the status is not 0
  {"certify": NAME, "year": YEAR, "by": AUTHORITY}   has a new certificate when it listens again; its own authority is ""
  {"authority": NAME, "to": FILE}   writes the certificate of one of its authorities
  {"tokens": [TOKEN, ...]}          these alone may call; none: everybody
  {"calls": true}                   the calls since the last time: [METHOD, PATH, STATUS]
"""

import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from urllib.parse import parse_qs, urlparse

changed = threading.Condition()
objects = {}  # by path
events = []  # (version, type, path, object)
planned = []  # statuses of the next calls
calls = []
state = {"version": 1, "watches": 0, "end": 0, "tokens": [], "names": 0, "delay": 0, "drop": []}
connections = set()


def store(kind, path, thing):
    state["version"] += 1
    if thing is not None:
        thing.setdefault("metadata", {})["resourceVersion"] = str(state["version"])
    if kind == "DELETED":
        thing = objects.pop(path)
    else:
        objects[path] = thing
    events.append((state["version"], kind, path, json.loads(json.dumps(thing))))
    changed.notify_all()


def commanded(command):
    with changed:
        if "put" in command:
            thing = command["object"]
            thing.setdefault("metadata", {}).setdefault("uid", f"00000000-0000-4000-8000-{state['version']:012}")
            store("MODIFIED" if command["put"] in objects else "ADDED", command["put"], thing)
        elif "get" in command:
            return objects.get(command["get"])
        elif "list" in command:
            return [thing for path, thing in sorted(objects.items()) if path.startswith(command["list"])]
        elif "remove" in command:
            store("DELETED", command["remove"], None)
        elif "next" in command:
            planned.extend(command["next"])
        elif "end" in command:
            state["watches"] += 1
            state["end"] = command["end"]
            changed.notify_all()
        elif "drop" in command:
            state["drop"] = command["drop"]
        elif "delay" in command:
            state["delay"] = command["delay"]
        elif "certify" in command:
            state["certificate"] = certified(command["certify"], command["year"], authorities[command["by"]])
        elif "authority" in command:
            with open(command["to"], "wb") as file:
                file.write(pem(*authorities[command["authority"]])[0])
        elif "tokens" in command:
            state["tokens"] = command["tokens"]
        elif "calls" in command:
            made = calls[:]
            calls.clear()
            return made
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # As a real one: an answer is two writes, and the second would wait for an acknowledgement of the first.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        connections.add(self.connection)

    def finish(self):
        connections.discard(self.connection)
        super().finish()

    def say(self, status, thing):
        calls.append([self.command, self.path, status])
        body = (thing if isinstance(thing, str) else json.dumps(thing)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status):
        self.say(status, failure(status))

    def handled(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        time.sleep(state["delay"])
        with changed:
            plan = planned.pop(0) if planned else None
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if plan is None and state["tokens"] and token not in state["tokens"]:
                plan = 401
            if plan == -1:
                while True:
                    changed.wait()
            if plan == 0:
                self.close_connection = True
                return
            if isinstance(plan, str):
                return self.say(200, plan)
            if plan is not None:
                return self.refuse(plan)
            url = urlparse(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if query.get("watch") in ("1", "true"):
                return self.watched(url.path, query)
            self.answered(url.path, query, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handled

    def answered(self, path, query, body):
        known = objects.get(path)
        for device in (body or {}).get("spec", {}).get("devices") or []:
            for name in state["drop"]:
                device["attributes"].pop(name, None)
        if self.command == "GET" and known is None and path.endswith("s"):
            items = [thing for name, thing in sorted(objects.items()) if name.rsplit("/", 1)[0] == path]
            return self.say(200, {"kind": "List", "apiVersion": "v1", "items": items, "metadata": {"resourceVersion": str(state["version"])}})
        if self.command == "POST":
            state["names"] += 1
            meta = body["metadata"]
            meta["name"] = meta.get("name") or f"{meta.get('generateName', '')}{state['names']:05}"
            meta["uid"] = f"00000000-0000-4000-9000-{state['names']:012}"
            store("ADDED", f"{path}/{meta['name']}", body)
            return self.say(201, body)
        if known is None:
            return self.refuse(404)
        if self.command == "PUT":
            sent = body["metadata"].get("resourceVersion")
            if sent and sent != known["metadata"]["resourceVersion"]:
                return self.refuse(409)
            body["metadata"]["uid"] = known["metadata"]["uid"]
            store("MODIFIED", path, body)
            return self.say(200, body)
        if self.command == "DELETE":
            store("DELETED", path, None)
            return self.say(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        if self.command == "GET":
            return self.say(200, known)
        self.refuse(405)

    def watched(self, path, query):
        calls.append([self.command, self.path, 200])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seen = int(query.get("resourceVersion") or 0)
        watches = state["watches"]
        try:
            while state["watches"] == watches:
                for version, kind, name, thing in events[:]:
                    if version > seen:
                        seen = version
                        if name.rsplit("/", 1)[0] == path:
                            self.chunk({"type": kind, "object": thing})
                changed.wait()
            if state["end"]:
                self.chunk({"type": "ERROR", "object": failure(state["end"])})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def chunk(self, thing):
        line = json.dumps(thing).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.flush()


def failure(status):
    reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reasons.get(status, "InternalError"),
            "message": f"as the test said: {status}"}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # the driver may end at any time


def listening(port):
    server = Server(("127.0.0.1", port), Handler)
    if authorities:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"".join(pem(*state["certificate"])))
            file.flush()
            context.load_cert_chain(file.name)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    return server


def certified(name, year, issuer=None):
    """Returns a certificate up to a year, and its key; that of an authority if nobody issues it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    by, by_key = issuer or (None, key)
    one = x509.CertificateBuilder(by.subject if by else subject, subject, key.public_key(), x509.random_serial_number())
    one = one.not_valid_before(datetime(2001, 1, 1)).not_valid_after(datetime(year, 1, 1))
    one = one.add_extension(x509.BasicConstraints(ca=not by, path_length=None), critical=True)
    if by:
        is_address = name.replace(".", "").isdigit()
        name = x509.IPAddress(ip_address(name)) if is_address else x509.DNSName(name)
        one = one.add_extension(x509.SubjectAlternativeName([name]), critical=False)
    return one.sign(by_key, SHA256()), key


def pem(certificate, key):
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def refusing():
    server.shutdown()
    server.server_close()
    for connection in list(connections):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    with changed:
        changed.notify_all()  # watches find out that they have no reader
    return True


authorities = {}
if sys.argv[1:]:
    authorities = {name: certified("authority " + name, 2099) for name in ["", "other"]}
    state["certificate"] = certified("127.0.0.1", 2099, authorities[""])
    with open(sys.argv[1], "wb") as file:
        file.write(pem(*authorities[""])[0])
server = listening(0)
port = server.server_address[1]
print(port, flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if "open" not in command:
        answer = commanded(command)
    elif command["open"]:
        server = listening(port)
        answer = True
    else:
        answer = refusing()
    print(json.dumps(answer), flush=True)
