"""A running load whose every answer is known: chats and completions, streamed and not, greedy and seeded, long and
short, by a plain socket, by the `openai` package, and by clients that leave."""

import os
import random
import sys
import threading
import time

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from cluster import Stream, request, text_of  # noqa: E402

PATIENCE = 150

LONG = " ".join(f"word {n}" for n in range(150))
CHAT = [{"role": "user", "content": "Go on with this list: " + " ".join(f"item {n}," for n in range(60))}]
ASKED = [
    ("/completions", {"prompt": "The history of the city begins", "temperature": 0, "max_tokens": 48}),
    ("/completions", {"prompt": "The history of the city begins", "temperature": 1.0, "seed": 7, "max_tokens": 32}),
    ("/completions", {"prompt": "Ünïcödé 大海 🌊 λόγος", "temperature": 2.0, "seed": 11, "max_tokens": 40}),
    ("/completions", {"prompt": LONG, "temperature": 0, "max_tokens": 8}),
    ("/chat/completions", {"messages": [{"role": "user", "content": "大海 and 🌊, please."}], "temperature": 0.8, "seed": 5,
                           "max_tokens": 40}),
    ("/chat/completions", {"messages": [{"role": "user", "content": "Count to twenty."}], "temperature": 0,
                           "max_tokens": 24, "stop": ["7", "zzz"]}),
    ("/chat/completions", {"messages": CHAT, "temperature": 0, "max_tokens": 40}),
]


def next_turn(answer):
    """The last question's chat goes on: what was generated for it is in a decode worker's cache, and nowhere else."""
    messages = CHAT + [{"role": "assistant", "content": answer}, {"role": "user", "content": "Now all of them again."}]
    return "/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 24}


def whole(path, options):
    status, _, answer = request("POST", path, dict({"model": "smollm2", "ignore_eos": True}, **options), timeout=PATIENCE)
    if status != 200:
        raise Failed(f"status {status}: {answer}")
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


class Failed(Exception):
    """The cluster has answered with an error: what no client should see."""


class Answer:
    """What became of one request."""

    def __init__(self, kind, question):
        self.kind, self.question = kind, question
        self.began, self.ended = time.monotonic(), None
        self.outcome, self.why, self.pause = None, "", 0.0
        self.unseen = False      # its client may have left before nginx had read it


class Client(threading.Thread):
    """Asks one question after the other until it is told to stop."""

    def __init__(self, load, kind, seed):
        super().__init__(daemon=True)
        self.load, self.kind = load, kind
        self.rng = random.Random(seed)
        self.openai = openai.OpenAI(base_url=os.environ["PD_URL"], api_key="-", max_retries=0, timeout=PATIENCE)

    def run(self):
        while not self.load.stopping.is_set():
            question = self.rng.randrange(len(self.load.asked))
            answer = Answer(self.kind, question)
            self.load.begin(answer)
            try:
                text = getattr(self, self.kind)(answer, *self.load.asked[question])
                answer.outcome = ("left" if text is None else
                                  "same" if text == self.load.reference[question] else "different")
                if answer.outcome == "different":
                    answer.why = f"{text!r} is not {self.load.reference[question]!r}"
            except (Failed, openai.APIStatusError) as fault:
                answer.outcome, answer.why = "error", str(fault)
            except Exception as fault:  # the connection: cut, refused, silent
                answer.outcome, answer.why = "cut", f"{type(fault).__name__}: {fault}"
            self.load.end(answer)

    def plain(self, _, path, options):
        return whole(path, options)

    def stream(self, answer, path, options, leave_after=None):
        text, done, last, events = "", False, time.monotonic(), 0
        stream = Stream(path, dict({"model": "smollm2", "ignore_eos": True}, **options), timeout=PATIENCE)
        status, _ = stream.head()
        if status != 200:
            raise Failed(f"status {status}")
        for event in stream.events():
            now = time.monotonic()
            answer.pause, last, events = max(answer.pause, now - last if events else 0), now, events + 1
            if done:
                raise Failed("an event behind [DONE]")
            if event == "[DONE]":
                done = True
            elif "error" in event:
                raise Failed(event["error"]["message"])
            else:
                text += text_of(event)
            if leave_after is not None and events > leave_after:
                stream.leave(reset=self.rng.random() < 0.5)
                return None
        if not done:
            raise ConnectionError("the stream just ended")
        return text

    def leaver(self, answer, path, options):
        """Leaves in the middle, or ends a short answer like everybody."""
        return self.stream(answer, path, options, leave_after=self.rng.randrange(20))

    def fickle(self, answer, path, options):
        """Leaves before anything has come: with the request, while it waits, while its prompt is computed or handed over."""
        stream = Stream(path, dict({"model": "smollm2", "ignore_eos": True}, **options), timeout=PATIENCE)
        wait = self.rng.choice([0, self.rng.uniform(0, 0.02), self.rng.uniform(0, 0.5)])
        answer.unseen = True
        time.sleep(wait)
        stream.leave(reset=self.rng.random() < 0.5)
        time.sleep(0.2)
        return None

    def package(self, answer, path, options):
        """The `openai` package, as a person would use it."""
        options = dict(options, model="smollm2", extra_body={"ignore_eos": True})
        ask = self.openai.completions.create if path == "/completions" else self.openai.chat.completions.create
        if self.rng.random() < 0.3:
            choice = ask(**options).choices[0]
            return choice.text if path == "/completions" else choice.message.content
        options["stream"] = True
        text, last = "", None
        for event in ask(**options):
            now = time.monotonic()
            answer.pause, last = max(answer.pause, now - last if last else 0), now
            if event.choices:
                choice = event.choices[0]
                text += (choice.text if path == "/completions" else choice.delta.content) or ""
        return text


class Load:
    """The clients together, and what became of all that they asked."""

    KINDS = ("stream", "plain", "package", "stream", "leaver", "fickle")

    def __init__(self, seed, clients):
        self.reference = [whole(*question) for question in ASKED]
        self.asked = ASKED + [next_turn(self.reference[-1])]
        self.reference.append(whole(*self.asked[-1]))
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.answers, self.running = [], set()
        self.clients = [Client(self, self.KINDS[i % len(self.KINDS)], seed * 1000 + i) for i in range(clients)]
        for client in self.clients:
            client.start()

    def begin(self, answer):
        with self.lock:
            self.running.add(answer)

    def end(self, answer):
        with self.lock:
            answer.ended = time.monotonic()
            self.running.discard(answer)
            self.answers.append(answer)

    def sent(self):
        return len(self.reference) + len(self.answers)

    def may_be_lost(self):
        return sum(answer.unseen for answer in self.answers)

    def settle(self):
        """Waits until all that runs now has ended, so that no request is there at two faults."""
        with self.lock:
            now = set(self.running)
        while now & self.running:
            time.sleep(0.05)

    def stop(self):
        self.stopping.set()
        for client in self.clients:
            client.join(PATIENCE + 30)
        return not any(client.is_alive() for client in self.clients)
