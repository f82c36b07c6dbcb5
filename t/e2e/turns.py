"""Inside a cluster: chats of three turns, each answered greedily, with long new texts that need a prefill worker.

Prints the answers as one JSON line. What nobody computed is what the usage says it is, by the workers' own count of
computed tokens; with PD_BORROW=1, no turn but the first computes what a worker has of it."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import access_log, metric, request, stats, wait_at_rest, workers  # noqa: E402

BORROW = os.environ.get("PD_BORROW") == "1"
BLOCK = 16
CHATS = 1
TURNS = ["Tell me about a harbour town in two sentences. " + "It has a lighthouse and a fish market. " * 3,
         "Now tell me who lives there. " + "Somebody repairs nets, somebody paints boats. " * 4,
         "And what happens in winter? " + "The wind comes from the north, and the ice is thin. " * 4]


def computed():
    """Tokens of prompts that the workers have computed."""
    return sum(counter.value for name in workers() for counter in stats(name).counters
               if counter.name == "tokens_prefilled")


def counted(name):
    return sum(counter.value for worker in workers() for counter in stats(worker).counters if counter.name == name)


def turn(messages):
    """(text, usage, tokens that were computed for it)"""
    before = computed()
    status, _, answer = request("POST", "/chat/completions", {
        "model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 48})
    if status != 200:
        raise AssertionError(f"status {status}: {answer}")
    wait_at_rest()
    return answer["choices"][0]["message"]["content"], answer["usage"], computed() - before


def check(number, usage, before, cost):
    prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if cost != prompt - cached:
        raise AssertionError(f"turn {number}: {cost} tokens were computed, and {cached} of {prompt} not, it says")
    if BORROW and number > 0:
        # all of the last turn but its last token has KV, in whole blocks
        known = before["prompt_tokens"] + before["completion_tokens"]
        if cost > prompt - known + BLOCK:
            raise AssertionError(f"turn {number}: {cost} tokens were computed of {prompt}, though {known} were known")


def chat(name):
    texts, before = [], None
    messages = [{"role": "system", "content": f"You are {name}, who answers briefly and likes the sea."}]
    for number, text in enumerate(TURNS):
        messages.append({"role": "user", "content": text})
        answer, usage, cost = turn(messages)
        check(number, usage, before, cost)
        messages.append({"role": "assistant", "content": answer})
        texts.append(answer)
        before = usage
    return texts


def main():
    texts = [chat(f"Number {i}") for i in range(CHATS)]
    asked = CHATS * (len(TURNS) - 1) if BORROW else 0
    lines = access_log()
    logged = [int(line["borrowed"]) for line in lines]
    assert len(lines) == CHATS * len(TURNS) and all(line["route"] == "split" for line in lines), lines
    assert sum(tokens > 0 for tokens in logged) == asked, logged
    assert metric("pd_borrows_total", result="borrowed") == asked, metric("pd_borrows_total")
    assert metric("pd_borrows_total", result="computed") == 0, metric("pd_borrows_total")
    assert metric("pd_borrowed_tokens_total") == sum(logged) == counted("borrowed_tokens"), logged
    print(json.dumps(texts))


main()
