"""Workers killed at every stage: whoever asked gets an answer, or, where none is left to give it, a clear error in
finite time; whoever lives on has all its blocks back; the frontend tells the truth about what can still be served.

Runs in a cluster of 2 prefill and 2 decode workers, of which it kills one each, and whose queue waits for 8 s."""

import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Stream, Tests, pid, request, stats, text_of, wait_at_rest, workers  # noqa: E402

RNG = random.Random(12)
ALIVE = set(workers())
SLOWNESS = int(os.environ.get("PD_SLOWNESS", "1"))  # of a sanitized build: prompts and answers shrink by it


def body(tokens, answer):
    return {"model": "smollm2", "prompt": [RNG.randrange(1000, 40000) for _ in range(tokens // SLOWNESS)],
            "max_tokens": max(answer // SLOWNESS, 8), "ignore_eos": True, "temperature": 0}


def outcome(stream):
    """"answered", "status NNN" or "error event"; anything else is a failure of the test."""
    status, headers = stream.head()
    if status != 200:
        assert status in (500, 502, 503, 504), status
        assert headers["content-type"].startswith("application/json"), headers
        return f"status {status}"
    done = failed = False
    for event in stream.events():
        assert not done, "an event after [DONE]"
        if event == "[DONE]":
            assert not failed, "[DONE] after an error"
            done = True
        elif "error" in event:
            assert event["error"]["message"], event
            failed = True
    assert done != failed, "the stream just ended"
    return "answered" if done else "error event"


def under_load(name, delay, tokens, answer):
    """Kills a worker while eight streams run; how each ended."""
    streams = [Stream("/completions", body(tokens, answer)) for _ in range(8)]
    ends = [None] * len(streams)

    def follow(index):
        try:
            ends[index] = outcome(streams[index])
        except Exception as fault:
            ends[index] = f"FAULT {type(fault).__name__}: {fault}"

    threads = [threading.Thread(target=follow, args=(i,)) for i in range(len(streams))]
    for thread in threads:
        thread.start()
    time.sleep(delay)
    os.kill(pid(name), signal.SIGKILL)
    ALIVE.discard(name)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), f"streams hang after {name} was killed"
    assert not [end for end in ends if end.startswith("FAULT")], ends
    wait_at_rest(sorted(ALIVE))
    return ends


def a_killed_decode_worker_ends_no_answer():
    ends = under_load("decode-0", 1.0, 40, 400)
    assert ends == ["answered"] * 8, ends


def a_killed_prefill_worker_ends_no_answer():
    ends = under_load("prefill-0", 0.3, 500, 8)
    assert ends == ["answered"] * 8, ends


def the_rest_goes_on():
    for _ in range(4):
        status, _, answer = request("POST", "/completions", body(64, 8))
        assert status == 200, answer
    status, _, listed = request("GET", "/models")
    assert status == 200 and [m["id"] for m in listed["data"]] == ["smollm2"], listed


def with_no_decode_worker_left_requests_are_refused():
    ends = under_load("decode-1", 0.5, 600, 2000)
    assert "answered" not in ends, ends
    start = time.monotonic()
    status, headers, answer = request("POST", "/completions", body(64, 8), timeout=60)
    assert status == 503, (status, answer)
    assert int(headers["Retry-After"]) > 0, headers
    assert answer["error"]["message"], answer
    assert time.monotonic() - start < 45
    assert stats("prefill-1").load.running == 0


Tests().run(a_killed_decode_worker_ends_no_answer, a_killed_prefill_worker_ends_no_answer,
            the_rest_goes_on, with_no_decode_worker_left_requests_are_refused)
