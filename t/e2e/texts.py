"""Inside a cluster: greedy answers to the oracle's prompts, each asked alone and then all in batches of 16 at once.
Fails where the two differ; prints the answers as one JSON line for t/e2e/same_text."""

import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "oracle"))
from cluster import request, wait_at_rest  # noqa: E402
from prompts import PROMPTS  # noqa: E402


def ask(text, seed=None):
    body = {"model": "smollm2", "prompt": text, "max_tokens": 40}
    body.update({"temperature": 0} if seed is None else {"temperature": 0.8, "top_p": 0.9, "seed": seed})
    status, _, answer = request("POST", "/completions", body)
    if status != 200:
        raise AssertionError(f"status {status}: {answer}")
    choice = answer["choices"][0]
    return [choice["text"], choice["finish_reason"], answer["usage"]["prompt_tokens"],
            answer["usage"]["completion_tokens"]]


def together(jobs):
    """Answers to all jobs, 16 in flight."""
    answers, position, lock = [None] * len(jobs), iter(range(len(jobs))), threading.Lock()

    def worker():
        while True:
            with lock:
                index = next(position, None)
            if index is None:
                return
            try:
                answers[index] = ask(*jobs[index])
            except Exception as fault:
                answers[index] = repr(fault)

    threads = [threading.Thread(target=worker) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main():
    jobs = [(text, None) for _, text in PROMPTS] + [(text, 7) for _, text in PROMPTS[:4]]
    alone = [ask(*job) for job in jobs]
    batched = together(jobs)
    wait_at_rest()
    wrong = [i for i in range(len(jobs)) if alone[i] != batched[i]]
    for i in wrong:
        print(f"alone and with others differ: {alone[i]} / {batched[i]}", file=sys.stderr)
    print(json.dumps(alone))
    sys.exit(1 if wrong else 0)


main()
