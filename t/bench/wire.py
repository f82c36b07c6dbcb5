"""HTTP by hand, and what is in front of it: for benchmarks in which the client's own cost must stay small."""

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("PD_BUILD", f"{ROOT}/build"))
PROMPT_BYTES = 300


# ---- requests


def post(path, body, kind, keep=False):
    return (f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n").encode() + body


def chat(tokens, stream, keep=False, prompt_bytes=PROMPT_BYTES):
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * prompt_bytes}], "max_tokens": tokens}
    if stream:
        body["stream"] = True
    return post("/v1/chat/completions", json.dumps(body).encode(), "application/json", keep)


def dial(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def is_whole(data):
    """Whether that is a whole response."""
    head, blank, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return blank and (len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n"))


def answer(connection):
    """One whole response off a connection that is kept."""
    data = b""
    while not is_whole(data):
        more = connection.recv(65536)
        if not more:
            raise RuntimeError("the response was cut")
        data += more
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(data.decode(errors="replace"))
    return data.partition(b"\r\n\r\n")[2]


def one_after_another(port, request, count):
    with dial(port) as connection:
        for _ in range(count):
            connection.sendall(request)
            answer(connection)


def at_once(port, request, count):
    """Reads `count` streams to their end; returns how many events came and in how many chunks."""
    selector, texts = selectors.DefaultSelector(), {}
    for _ in range(count):
        connection = dial(port)
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ)
        texts[connection] = []
    while selector.get_map():
        ready = selector.select(60)
        if not ready:
            raise RuntimeError("streams stand still")
        for key, _ in ready:
            data = key.fileobj.recv(65536)
            texts[key.fileobj].append(data)
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    events = chunks = 0
    for parts in texts.values():
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or not body.endswith(b"0\r\n\r\n"):
            raise RuntimeError((head + body[-200:]).decode(errors="replace"))
        events += body.count(b'"content":"word "')
        chunks += body.count(b"\r\n") // 2 - 1
    return events, chunks


# ---- processes


class Mocks(contextlib.ExitStack):
    """Everything that is started, stopped again in the reverse order."""

    def __init__(self, name):
        super().__init__()
        self.dir = self.enter_context(tempfile.TemporaryDirectory(prefix=f"pd-{name}-"))

    def mock(self, program, *arguments):
        """Starts a mock, which lives as long as its input is open; returns its port."""
        process = subprocess.Popen([f"{BUILD}/t/bench/{program}", *arguments], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.callback(process.wait)
        self.callback(process.stdin.close)
        return int(process.stdout.readline().split()[1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find_nginx():
    for place in (f"{BUILD}/nginx/objs/nginx", "/usr/sbin/nginx"):
        if os.access(place, os.X_OK):
            return place
    raise RuntimeError("no nginx; run ./configure --install-deps")


def wait_ready(port, process):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, RuntimeError), dial(port) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: bench\r\n\r\n")
            answer(connection)
            return
        time.sleep(0.1)
    raise RuntimeError("nginx did not become ready")
