"""A small HTTP client for the benchmarks: raw sockets, so that the client's own cost stays out of the figures."""

import json
import os
import socket
import time
from urllib.parse import urlsplit


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def stream(path, body, url=None, stop=None):
    """POSTs body with stream on; returns (seconds to each event that carries text, last usage). `stop`, a
    threading.Event: hangs up at the first event behind it."""
    parts = urlsplit((url or os.environ["PD_URL"]) + path)
    data = json.dumps(dict(body, stream=True, stream_options={"include_usage": True})).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.perf_counter()
        connection.sendall((f"POST {parts.path} HTTP/1.0\r\nHost: bench\r\nContent-Type: application/json\r\n"
                            f"Content-Length: {len(data)}\r\n\r\n").encode() + data)
        file = connection.makefile("rb")
        status = file.readline().split()[1]
        while file.readline().strip():
            pass
        if status != b"200":
            raise RuntimeError(f"status {status.decode()}: {file.read().decode()}")
        times, usage = [], None
        for line in file:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter() - start
            if stop and stop.is_set():
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            usage = event.get("usage") or usage
            if any(choice.get("text") or (choice.get("delta") or {}).get("content") for choice in event["choices"]):
                times.append(now)
    return times, usage


def report(name, figures, skipped=()):
    """The last stdout line of a benchmark. A figure is (name, unit, value, peer, peer_value, better, goal); what was
    skipped is (name, reason)."""
    print(json.dumps({"bench": name, "figures": [
        {"name": n, "unit": unit, "value": float(f"{value:.6g}"), "peer": peer,
         "peer_value": None if peer_value is None else float(f"{peer_value:.6g}"),
         "ratio": None if not peer_value else round(value / peer_value, 3), "better": better, "goal": goal}
        for n, unit, value, peer, peer_value, better, goal in figures],
        **({"skipped": [{"name": n, "reason": reason} for n, reason in skipped]} if skipped else {})}))
