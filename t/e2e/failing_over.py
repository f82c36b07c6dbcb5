"""Workers are lost in the middle of answers, and nobody notices: the text is the same, bit for bit, greedy and seeded,
with stop strings and with characters that take several tokens, streamed and not.

Runs in a cluster of 2 prefill and 2 decode workers, or 2 mixed ones."""

import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Stream, Tests, access_log, request, text_of, wait_at_rest, workers  # noqa: E402
from faults import Log, Worker  # noqa: E402

PREFILL = [Worker(name) for name in workers() if not name.startswith("decode")]
DECODE = [Worker(name) for name in workers() if not name.startswith("prefill")]

CHAT = [{"role": "user", "content": "Write a short poem about the sea, in Chinese and in English. 大海"}]
ASKED = [
    ("greedy", "/completions", {"prompt": "The history of the city begins", "temperature": 0}),
    ("seeded", "/completions", {"prompt": "The history of the city begins", "temperature": 1.0, "seed": 7}),
    # so hot that characters come in pieces, and in ever new languages
    ("hot", "/completions", {"prompt": "Ünïcödé 大海 🌊 λόγος", "temperature": 2.0, "seed": 11}),
    ("penalties", "/completions", {"prompt": "One two three one two three", "temperature": 0.7, "seed": 3,
                                   "presence_penalty": 1.0, "frequency_penalty": 0.5}),
    ("chat", "/chat/completions", {"messages": CHAT, "temperature": 0.8, "seed": 5}),
]
TOKENS = 64


def ask(path, options):
    body = dict({"model": "smollm2", "max_tokens": TOKENS, "ignore_eos": True}, **options)
    status, _, answer = request("POST", path, body)
    assert status == 200, answer
    choice = answer["choices"][0]
    return choice.get("text") or choice["message"]["content"], choice["finish_reason"], answer["usage"]


REFERENCE = {name: ask(path, options) for name, path, options in ASKED}


def stop_in_the_middle():
    """A stop string out of the greedy answer's own text, which ends in the middle of it."""
    text = REFERENCE["greedy"][0]
    at = len(text) * 3 // 4
    return text[at:at + 12]


STOPS = {"prompt": "The history of the city begins", "temperature": 0, "stop": [stop_in_the_middle()]}
ASKED.append(("stops", "/completions", STOPS))
REFERENCE["stops"] = ask("/completions", STOPS)


class Follower(threading.Thread):
    """Reads one streamed answer to its end."""

    def __init__(self, path, options):
        super().__init__()
        self.stream = Stream(path, dict({"model": "smollm2", "max_tokens": TOKENS, "ignore_eos": True,
                                         "stream_options": {"include_usage": True}}, **options))
        self.text, self.pieces, self.finish, self.usage, self.fault, self.done = "", 0, None, None, None, False
        self.begun = threading.Event()
        self.start()

    def run(self):
        try:
            status, _ = self.stream.head()
            assert status == 200, status
            for event in self.stream.events():
                if event == "[DONE]":
                    self.done = True
                    continue
                assert "error" not in event, event
                if event.get("usage"):
                    self.usage = event["usage"]
                for choice in event["choices"]:
                    self.finish = choice["finish_reason"] or self.finish
                self.text += text_of(event)
                self.pieces += 1
                if self.pieces > 8:
                    self.begun.set()
        except Exception as fault:  # told by the test that waits for it
            self.fault = fault
        self.begun.set()


def same_answers(followers):
    for name, follower in followers:
        follower.join(120)
        assert not follower.is_alive(), f"{name}: the stream hangs"
        assert not follower.fault, f"{name}: {follower.fault!r}"
        assert follower.done, f"{name}: no [DONE]"
        text, finish, usage = REFERENCE[name]
        assert follower.text == text, f"{name}: {follower.text!r} is not {text!r}"
        assert (follower.finish, follower.usage["completion_tokens"], follower.usage["prompt_tokens"]) == (
            finish, usage["completion_tokens"], usage["prompt_tokens"]), (name, follower.usage, usage)


def failovers():
    return sum(int(line.get("failovers", 0)) for line in access_log())


def lose(worker, harm):
    """All questions at once; when their answers run, the worker is harmed."""
    before = failovers()
    followers = [(name, Follower(path, options)) for name, path, options in ASKED]
    for _, follower in followers:
        follower.begun.wait(60)
    harm(worker)
    same_answers(followers)
    deadline = time.monotonic() + 5
    while failovers() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    return failovers() - before


def healed(worker):
    log = Log()
    worker.start()
    log.wait(f'attached to worker "{worker.address}"')
    wait_at_rest()


def a_killed_worker_in_mid_answer():
    moved = 0
    for worker in DECODE:
        moved += lose(worker, Worker.kill)
        healed(worker)
    assert moved >= 2, moved


def a_stopped_worker_is_found_out():
    """SIGSTOP: the connection stays open, and nothing comes."""
    worker = DECODE[0]
    log = Log()
    seconds = []

    def harm(it):
        it.stop()
        seconds.append(log.wait(f'lost worker "{it.address}"', 30))

    lose(worker, harm)
    worker.go_on()
    log.wait(f'attached to worker "{worker.address}"')
    wait_at_rest()
    assert seconds[0] < 7, seconds


def a_prefill_worker_killed_with_its_prompts():
    """Long prompts that no cache knows, so that the hand-off is not complete when P dies."""
    prompts = [f"{n}: " + " ".join(f"word {i}" for i in range(n, n + 250)) for n in range(3)]
    options = [{"prompt": prompt, "temperature": 0, "max_tokens": 8} for prompt in prompts]
    followers = [(f"long {n}", Follower("/completions", one)) for n, one in enumerate(options)]
    time.sleep(0.3)
    PREFILL[0].kill()
    for n, one in enumerate(options):
        REFERENCE[f"long {n}"] = ask("/completions", one)
    same_answers(followers)
    healed(PREFILL[0])


def a_drained_worker_moves_what_does_not_end():
    """SIGTERM, and the patience of a worker that is asked twice: what runs is cut, and goes on elsewhere."""
    worker = DECODE[0]

    def harm(it):
        it.signal(signal.SIGTERM)
        time.sleep(0.2)
        it.signal(signal.SIGTERM)
        it.gone()

    lose(worker, harm)
    healed(worker)


try:
    Tests().run(a_killed_worker_in_mid_answer, a_stopped_worker_is_found_out,
                a_prefill_worker_killed_with_its_prompts, a_drained_worker_moves_what_does_not_end)
finally:
    for one in PREFILL + DECODE:
        one.end()
