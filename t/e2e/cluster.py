"""What the end-to-end tests need of a running cluster (t/cluster): requests, and a look inside the workers."""

import glob
import http.client
import json
import os
import re
import socket
import sys
import time
from urllib.parse import urlsplit

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "link"))
from rig import CHANNEL, pd  # noqa: E402

URL = urlsplit(os.environ["PD_URL"])
DIR = os.environ["PD_DIR"]
PATIENCE = float(os.environ.get("PD_PATIENCE", "60"))


def request(method, path, body=None, headers=None, timeout=PATIENCE):
    """(status, headers, decoded body) of one plain request."""
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=timeout)
    try:
        connection.request(method, URL.path + path, None if body is None else json.dumps(body),
                           dict({"Content-Type": "application/json"}, **(headers or {})))
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, dict(answer.getheaders()), json.loads(data) if data else None
    finally:
        connection.close()


class Stream:
    """A streamed request that can be left at any moment."""

    def __init__(self, path, body, timeout=PATIENCE):
        data = json.dumps(dict(body, stream=True)).encode()
        self.socket = socket.create_connection((URL.hostname, URL.port), timeout=timeout)
        self.socket.sendall((f"POST {URL.path}{path} HTTP/1.0\r\nHost: t\r\nContent-Type: application/json\r\n"
                             f"Content-Length: {len(data)}\r\n\r\n").encode() + data)
        self.file = self.socket.makefile("rb")

    def head(self):
        status = int(self.file.readline().split()[1])
        headers = {}
        while line := self.file.readline().strip():
            name, value = line.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        return status, headers

    def events(self):
        """Each event's JSON; the string "[DONE]" for the last one. Ends with the response."""
        for line in self.file:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                yield "[DONE]" if data == b"[DONE]" else json.loads(data)

    def leave(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.file.close()
        self.socket.close()


def text_of(event):
    choice = event["choices"][0] if event.get("choices") else {}
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def workers():
    """Names of the workers that t/cluster started."""
    return sorted(os.path.basename(path)[:-5] for path in glob.glob(f"{DIR}/*.port"))


def text_file(name):
    with open(f"{DIR}/{name}") as file:
        return file.read().strip()


def address(name):
    """HOST:PORT where the worker listens, as nginx names it."""
    return f"{text_file(name + '.host')}:{text_file(name + '.port')}"


def stats(name):
    """What the worker says of itself (StatsReply)."""
    with grpc.insecure_channel(address(name), options=CHANNEL) as channel:
        call = channel.unary_unary("/pd.v1.Worker/Stats", request_serializer=lambda m: m.SerializeToString(),
                                   response_deserializer=pd.StatsReply.FromString)
        return call(pd.StatsRequest(), timeout=PATIENCE)


def pid(name):
    return int(text_file(f"{name}.pid"))


def metrics():
    """nginx's counters: {(name, ((label, value), ...)): number}."""
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = {}
    for line in text.splitlines():
        if sample := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\d+)", line):
            labels = tuple(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
            found[sample[1], labels] = int(sample[3])
    return found


def metric(name, seen=None, **labels):
    """The sum of a family's samples that have these labels."""
    seen = metrics() if seen is None else seen
    return sum(value for (family, have), value in seen.items()
               if family == name and all((key, wanted) in have for key, wanted in labels.items()))


def at_rest(names=None):
    """None, or which worker is not at its baseline and why."""
    for name in names or workers():
        seen = stats(name)
        load = seen.load
        if load.running or load.waiting or load.kv_reserved or load.kv_free != seen.hello.kv_blocks:
            return (f"{name}: running {load.running}, waiting {load.waiting}, reserved {load.kv_reserved}, "
                    f"free {load.kv_free} of {seen.hello.kv_blocks}")
    return None


def wait_at_rest(names=None, patience=PATIENCE):
    """Every block of every worker is back; fails by name otherwise."""
    deadline = time.monotonic() + patience
    while why := at_rest(names):
        if time.monotonic() > deadline:
            raise AssertionError(f"not at rest after {patience} s: {why}")
        time.sleep(0.05)


def access_log():
    """The access log's lines as dicts of their key=value fields."""
    with open(f"{DIR}/access.log") as file:
        return [dict(field.split("=", 1) for field in line.split() if "=" in field) for line in file]


class Tests:
    """Runs functions one by one, says how each went, and counts."""

    def __init__(self):
        self.passed = self.failed = 0

    def run(self, *functions):
        for function in functions:
            try:
                function()
            except Exception as fault:  # a test may fail in any way
                self.failed += 1
                print(f"not ok - {function.__name__}: {type(fault).__name__}: {fault}", flush=True)
            else:
                self.passed += 1
                print(f"ok - {function.__name__}", flush=True)
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
