"""A small HTTP client for the benchmarks: raw sockets, so that the client's own cost stays out of the figures."""

import json
import os
import selectors
import socket
import time
from urllib.parse import urlsplit


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class Answer:
    """A streamed answer. What comes is only kept with its time, and understood when all is over: the client shares its
    cores with what it measures."""

    def __init__(self, path, body, url=None):
        parts = urlsplit((url or os.environ["PD_URL"]) + path)
        data = json.dumps(dict(body, stream=True, stream_options={"include_usage": True})).encode()
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parts = []
        self.start = time.perf_counter()
        self.socket.sendall((f"POST {parts.path} HTTP/1.0\r\nHost: bench\r\nContent-Type: application/json\r\n"
                             f"Content-Length: {len(data)}\r\n\r\n").encode() + data)

    def read(self):
        """Whether there is more to come."""
        part = self.socket.recv(65536)
        self.parts.append((time.perf_counter() - self.start, part))
        if not part:
            self.socket.close()
        return bool(part)

    def lines(self):
        """Each whole line of the body, with the seconds until it was there."""
        head, _, first = b"".join(part for _, part in self.parts).partition(b"\r\n\r\n")
        status = head.split()[1].decode() if head else "none"
        if status != "200":
            raise RuntimeError(f"status {status}: {first.decode()}")
        skip, rest = len(head) + 4, b""
        for at, part in self.parts:
            rest += part[skip:]
            skip = max(skip - len(part), 0)
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield at, line

    def events(self):
        """(seconds to each event that carries text or a token's log probability, last usage)"""
        times, usage = [], None
        for at, line in self.lines():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            usage = event.get("usage") or usage
            if any(choice.get("text") or (choice.get("delta") or {}).get("content") or choice.get("logprobs")
                   for choice in event["choices"]):
                times.append(at)
        return times, usage


def stream(path, body, url=None, stop=None):
    """POSTs body with stream on; returns what Answer.events does. `stop`, a threading.Event: hangs up at the first
    bytes behind it."""
    answer = Answer(path, body, url)
    while answer.read():
        if stop and stop.is_set():
            answer.socket.close()
            break
    return answer.events()


def streams(path, bodies, url=None):
    """All at once, on one thread; returns the answers, read to their ends."""
    answers = [Answer(path, body, url) for body in bodies]
    with selectors.DefaultSelector() as selector:
        for answer in answers:
            selector.register(answer.socket, selectors.EVENT_READ, answer)
        while selector.get_map():
            for key, _ in selector.select(120):
                descriptor = key.fd
                if not key.data.read():
                    selector.unregister(descriptor)
    return answers


def report(name, figures, skipped=()):
    """The last stdout line of a benchmark. A figure is (name, unit, value, peer, peer_value, better, goal); what was
    skipped is (name, reason)."""
    print(json.dumps({"bench": name, "figures": [
        {"name": n, "unit": unit, "value": float(f"{value:.6g}"), "peer": peer,
         "peer_value": None if peer_value is None else float(f"{peer_value:.6g}"),
         "ratio": None if not peer_value else round(value / peer_value, 3), "better": better, "goal": goal}
        for n, unit, value, peer, peer_value, better, goal in figures],
        **({"skipped": [{"name": n, "reason": reason} for n, reason in skipped]} if skipped else {})}))
