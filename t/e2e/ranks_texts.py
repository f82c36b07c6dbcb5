"""Inside a cluster: answers to a few prompts, greedy and drawn, with their log probabilities, as one JSON line for
t/e2e/ranks."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import request, wait_at_rest  # noqa: E402

PROMPTS = ["A", "The sea is calm tonight", "one two three four five six seven " * 5, "x" * 300]


def ask(prompt, **sampling):
    status, _, answer = request("POST", "/completions", {"model": "smollm2", "prompt": prompt, "max_tokens": 24,
                                                         "logprobs": 3, "ignore_eos": True, **sampling})
    if status != 200:
        raise AssertionError(f"status {status}: {answer}")
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    if len(logprobs["tokens"]) != 24:
        raise AssertionError(f"log probabilities of {len(logprobs['tokens'])} tokens: {answer}")
    return [choice["text"], choice["finish_reason"], logprobs["token_logprobs"], logprobs["top_logprobs"],
            answer["usage"]["prompt_tokens"]]


def main():
    seen = []
    for prompt in PROMPTS:
        seen.append(ask(prompt, temperature=0))
        seen.append(ask(prompt, temperature=0.9, top_p=0.95, seed=11))
    wait_at_rest()
    print(json.dumps(seen))


main()
