"""A GPU's sticky error in the middle of answers: the worker ends with one line and status 1, for its supervisor to start
it again, and the other one goes on with its answers, to the same text.

Runs in a cluster of two mixed workers whose GPU is the host's shim. There every call of a process fails from the moment
on that the file $PD_SIMT_FAULT.PID exists, as every call does after a GPU's illegal access."""

import os
import re
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Stream, Tests, access_log, stats, text_of  # noqa: E402
from faults import Log, Worker  # noqa: E402

PROMPTS = ("The house is", "One, two, three,", "x", "Once upon a time there was")
TOKENS = 48


class Answer(threading.Thread):
    """Reads one streamed answer to its end."""

    def __init__(self, prompt):
        super().__init__()
        self.stream = Stream("/completions", {"model": "smollm2", "prompt": prompt, "max_tokens": TOKENS,
                                              "temperature": 0, "ignore_eos": True})
        self.text, self.done, self.fault, self.begun = "", False, None, threading.Event()
        self.start()

    def run(self):
        try:
            status, _ = self.stream.head()
            assert status == 200, status
            for pieces, event in enumerate(self.stream.events()):
                if event == "[DONE]":
                    self.done = True
                    break
                assert "error" not in event, event
                self.text += text_of(event)
                if pieces > 4:
                    self.begun.set()
        except Exception as fault:  # told by the test that waits for it
            self.fault = fault
        self.begun.set()

    def whole(self):
        self.join(120)
        assert not self.is_alive() and not self.fault and self.done, (self.fault, self.text)
        return self.text


def restarted(name):
    """The worker, as a child of this process, which then sees its status."""
    worker, log = Worker(name), Log()
    worker.kill()
    worker.start()
    log.wait(f'attached to worker "{worker.address}"')
    return worker


def a_gpu_fails_in_mid_answer():
    expected = [answer.whole() for answer in [Answer(prompt) for prompt in PROMPTS]]
    assert all(expected), expected
    logs = {worker.name: Log(f"{worker.name}.log") for worker in WORKERS}
    answers = [Answer(prompt) for prompt in PROMPTS]
    for answer in answers:
        assert answer.begun.wait(60), "an answer does not begin"
    lost = next(worker for worker in WORKERS if stats(worker.name).load.running)
    told = logs[lost.name]
    with open(f"{os.environ['PD_SIMT_FAULT']}.{lost.child.pid}", "w", encoding="ascii"):
        status = lost.child.wait(60)
    assert status == 1, status
    texts = [answer.whole() for answer in answers]
    assert texts == expected, (texts, expected)
    with open(told.path, encoding="utf-8", errors="replace") as file:
        file.seek(told.at)
        errors = [line for line in file.read().splitlines() if re.search(r"Z error ", line)]
    assert len(errors) == 1, errors
    assert re.search(r"the device is lost \(\S.*: an illegal memory access was encountered \(GPU 0\)\): "
                     r"ending with status 1$", errors[0]), errors
    moved = sum(int(line.get("failovers", 0)) for line in access_log())
    assert moved > 0, "no answer was on the worker that failed"


WORKERS = [restarted("mixed-0"), restarted("mixed-1")]
try:
    Tests().run(a_gpu_fails_in_mid_answer)
finally:
    for one in WORKERS:
        one.end()
