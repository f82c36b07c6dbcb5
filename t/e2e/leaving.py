"""Clients that leave at every stage: both workers drop the sequence at once and every KV block comes back."""

import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Stream, Tests, at_rest, request, text_of, wait_at_rest, workers  # noqa: E402

RNG = random.Random(11)
SLOWNESS = int(os.environ.get("PD_SLOWNESS", "1"))  # of a sanitized build: prompts shrink by it
FAST = 30.0  # seconds; the answers that are left would run for minutes where this is tight


def prompt(tokens):
    return [RNG.randrange(1000, 40000) for _ in range(tokens // SLOWNESS)]


def body(tokens, answer=4000):
    return {"model": "smollm2", "prompt": prompt(tokens), "max_tokens": answer, "ignore_eos": True,
            "temperature": 0}


def leave_after(delay, tokens, reset):
    stream = Stream("/completions", body(tokens))
    time.sleep(delay)
    stream.leave(reset)


def before_prefill():
    """The request and the FIN come together."""
    for reset in (False, True):
        leave_after(0, 1500, reset)
    wait_at_rest(patience=FAST)


def while_queued_behind_another():
    first = Stream("/completions", body(2000, 4))
    second = Stream("/completions", body(2000))
    second.leave()
    first.leave()
    wait_at_rest(patience=FAST)


def during_prefill_and_transfer():
    for step in range(12):
        leave_after(0.02 + 0.04 * step, 1500, step % 2)
    wait_at_rest(patience=FAST)


def during_decode():
    for reset in (False, True):
        stream = Stream("/completions", body(100))
        status, _ = stream.head()
        assert status == 200, status
        events = stream.events()
        text = ""
        while len(text) < 20:
            text += text_of(next(events))
        stream.leave(reset)
        wait_at_rest(patience=FAST)


def many_at_once():
    streams = [Stream("/completions", body(60 + 40 * i)) for i in range(12)]
    time.sleep(0.3)
    for i, stream in enumerate(streams):
        stream.leave(i % 2)
    wait_at_rest(patience=FAST)


def the_cluster_still_answers():
    status, _, answer = request("POST", "/completions", dict(body(50, 8), stream=False))
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 8, answer
    wait_at_rest()
    assert at_rest() is None and len(workers()) >= 1


Tests().run(before_prefill, while_queued_behind_another, during_prefill_and_transfer, during_decode,
            many_at_once, the_cluster_still_answers)
