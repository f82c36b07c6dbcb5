"""Real workers, a dispatcher in forty lines: the same answer from one mixed worker and from a prefill and
a decode worker that hand KV over by shm and by tcp.

usage: pair.py MODEL
"""

import contextlib
import os
import sys
import tempfile
import threading
import time

from rig import (BUILD, DECODE, DIRECT, PREFILL, Frontend, Process, part_messages, pd, stats,
                 wait_for)

# A sanitized build computes a hundred times slower: the same ways, with less to compute on each.
SANITIZED = os.path.basename(BUILD) != "build"
STEP = ["--max-num-batched-tokens", "64", "--max-num-seqs", "16"] if SANITIZED else []
MAX_TOKENS, FOXES = (6, 10) if SANITIZED else (24, 60)

PROMPTS = [
    [("user", "What is the capital of France?")],
    [("system", "You answer in one line."), ("user", "Write a C function that adds two numbers.")],
    [("user", "用一句话介绍你自己。"), ("assistant", "我是一个助手。"), ("user", "🙂 and in English?")],
    [("user", "Summarise this: " + "the quick brown fox jumps over the lazy dog; " * FOXES)],
]


class Worker(Process):
    def __init__(self, folder, name, model, *arguments, memory="256MiB", step=STEP):
        self.log = open(os.path.join(folder, name + ".log"), "w", encoding="utf-8")
        port_file = os.path.join(folder, name + ".port")
        super().__init__([os.path.join(BUILD, "pd-worker"), "--model", model, "--served-model-name",
                          "m", "--name", name, "--port", "0", "--port-file", port_file,
                          "--kv-cache-memory", memory, "--log-level", "debug", *step, *arguments],
                         stderr=self.log)
        self.name = name
        try:
            wait_for(f"{name} to be ready", lambda: os.path.exists(port_file) or
                     self.child.poll() is not None)
            with open(port_file, encoding="ascii") as file:
                self.address = f"127.0.0.1:{int(file.read())}"
        except (AssertionError, OSError, ValueError):
            self.kill()
            raise

    def end(self):
        """SIGTERM on an idle worker: it leaves by itself and in order."""
        self.child.terminate()
        status = self.wait_exit()
        if status:
            text = self.text()
            report = text.find("Sanitizer")
            raise AssertionError(f"{self.name} ended with {status}: " +
                                 (text[report:report + 6000] if report >= 0 else text[-2000:]))

    def text(self):
        with open(self.log.name, encoding="utf-8") as file:
            return file.read()


def fill(submit, seed):
    """Greedy without a seed, else drawn at a high temperature."""
    submit.sampling.max_tokens = MAX_TOKENS
    if seed is not None:
        submit.sampling.temperature = 1.0
        submit.sampling.seed = seed
    return submit


def send(frontend, request, submit):
    for message in part_messages(request, 1, submit.SerializeToString()):
        frontend.put(message)


def chat(prompt, route, seed):
    submit = fill(pd.Submit(model="m", route=route), seed)
    for role, content in prompt:
        submit.chat.messages.add(role=role, content=content.encode())
    return submit


def answer_of(pieces):
    """Text and ids of an answer, in order, repeats dropped, whoever sent them."""
    text, ids = b"", []
    for piece in sorted(pieces, key=lambda piece: (piece.position, len(piece.tokens))):
        if piece.position + len(piece.tokens) <= len(ids) and piece.tokens:
            continue
        assert piece.position == len(ids), f"position {piece.position} after {len(ids)} tokens"
        ids.extend(piece.tokens)
        text += piece.text
    return text, ids


class Mixed:
    def __init__(self, worker):
        self.frontend = Frontend(worker.address)

    def ask(self, request, prompt, seed):
        send(self.frontend, request, chat(prompt, DIRECT, seed))

    def hear(self, request):
        self.frontend.finished(request)
        return answer_of(self.frontend.steps(request))


class Split:
    """What nginx does: prompt to P, ticket to D, P's first token and then D's."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = Frontend(prefill.address), Frontend(decode.address)

    def ask(self, request, prompt, seed):
        send(self.prefill, request, chat(prompt, PREFILL, seed))
        threading.Thread(target=self._forward, args=(request, seed), daemon=True).start()

    def _forward(self, request, seed):
        ticket = self.prefill.placed(request).ticket
        send(self.decode, request, fill(pd.Submit(model="m", route=DECODE, ticket=ticket), seed))

    def hear(self, request):
        first = self.prefill.finished(request)[2]
        last = self.decode.finished(request)[2]
        assert first.reason == 0 and last.reason in (1, 2), (first, last)
        self.timing = last.timing
        # D repeats P's token: the same at the same position, or two answers are being mixed.
        assert self.prefill.steps(request)[0].tokens[0] == self.decode.steps(request)[0].tokens[0]
        return answer_of(self.decode.steps(request))


def ask_all(way, first):
    """Every prompt, greedy and seeded, all at once; the answers in order."""
    wanted = [(prompt, seed) for seed in (None, 7) for prompt in PROMPTS]
    for i, (prompt, seed) in enumerate(wanted):
        way.ask(first + i, prompt, seed)
    return [way.hear(first + i) for i in range(len(wanted))]


def check_split(start, transport, expected):
    prefill, decode = (start(f"{role}-{transport}", "--role", role, "--kv-transport", transport)
                       for role in ("prefill", "decode"))
    way = Split(prefill, decode)
    # The second round finds prompts in both caches and must say the same.
    for first in (1, 101):
        answers = ask_all(way, first)
        for (text, ids), (want_text, want_ids) in zip(answers, expected):
            assert ids == want_ids, f"{transport}: {ids} is not {want_ids}"
            assert text == want_text, f"{transport}: {text!r} is not {want_text!r}"
        if first == 1:
            assert way.timing.kv_transport == transport, way.timing
    for worker in (prefill, decode):
        counters, reply = stats(worker.address)
        assert reply.load.running == 0 and reply.load.kv_reserved == 0, reply.load
        wait_for("the pool to be whole again", lambda worker=worker: free_blocks(worker) ==
                 stats(worker.address)[0]["kv_blocks"])
        assert counters["failures_internal"] == 0
    links = stats(decode.address)[1].load.links
    assert [(link.peer, link.up, link.transport) for link in links] == [
        (f"prefill-{transport}", True, transport)], links
    assert links[0].bytes > 0
    way.prefill.close()
    way.decode.close()
    for worker in (decode, prefill):
        worker.end()
    return links[0].bytes


def free_blocks(worker):
    return stats(worker.address)[1].load.kv_free


def main():
    model = sys.argv[1]
    # Whatever fails, no worker is left behind.
    with tempfile.TemporaryDirectory(prefix="pd-pair-") as folder, contextlib.ExitStack() as workers:
        def start(name, *arguments):
            worker = Worker(folder, name, model, *arguments)
            workers.callback(worker.kill)
            return worker

        mixed = start("mixed")
        way = Mixed(mixed)
        together = ask_all(way, 1)
        alone = []
        for i, (prompt, seed) in enumerate([(p, s) for s in (None, 7) for p in PROMPTS]):
            way.ask(201 + i, prompt, seed)
            alone.append(way.hear(201 + i))
        assert alone == together, "alone and among others the answer is the same"
        way.frontend.close()
        mixed.end()
        print("mixed:", together[0][0].decode())
        for transport in ("shm", "tcp"):
            begun = time.monotonic()
            moved = check_split(start, transport, together)
            print(f"{transport}: the same {len(together)} answers twice, {moved} bytes of KV moved, "
                  f"{time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
