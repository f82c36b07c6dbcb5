#!/usr/bin/env python3
"""Distributions after penalties and filters, by transformers' own processors in float32.

    sampling.py OUTPUT.json

Each case is a row of logits, a history and parameters, and the probability that transformers would draw each
token with. Run by `make references`; the test draws many times from the same rows and compares frequencies.
Presence and frequency penalties, which transformers does not have, are subtracted as the OpenAI API defines
them: frequency times the count of a token in the answer so far, presence once where it is there at all."""
import json
import sys

import torch
import transformers
from transformers.generation import logits_process as lp

import tiny_models

VOCABULARY = 48
HISTORY = [3, 5, 5, 7, 1, 9, 5, 7, 7, 7, 40, 41]
PROMPT = 5  # of the history

CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 1, "temperature": 2.0},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 1.3},
    {"min_p": 0.1},
    {"min_p": 0.3, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.2},
    {"repetition": 1.4},
    {"repetition": 0.7, "temperature": 0.8},
    {"presence": 1.5},
    {"frequency": 0.7},
    {"presence": -0.5, "frequency": 0.4, "repetition": 1.2, "top_p": 0.95, "top_k": 30},
    {"bias": {"3": 4.0, "11": -100.0, "20": 1.5}},
    {"bias": {"3": 4.0}, "repetition": 1.3, "temperature": 0.9, "top_k": 10},
    {"banned": [0, 2, 5], "top_p": 0.9},
    {"typical_p": 0.5},
    {"typical_p": 0.9, "temperature": 1.4},
    {"typical_p": 0.2, "temperature": 0.6},
    {"typical_p": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"typical_p": 0.8, "banned": [0, 2, 5], "repetition": 1.3},
]


def logits_of(number):
    """From flat to peaked, in 64ths, which JSON and float32 hold exactly; no two alike, since at a tie
    transformers keeps both and we the lower id."""
    taken = []
    for value in tiny_models.uniform(99, number, VOCABULARY):
        units = round(float(value) * 64 * (2 + number % 5))
        while units in taken:
            units += 1
        taken.append(units)
    return [units / 64 for units in taken]


def adjusted(case, scores, ids):
    for token, value in case.get("bias", {}).items():
        scores[0, int(token)] += value
    if "repetition" in case:
        scores = lp.RepetitionPenaltyLogitsProcessor(case["repetition"])(ids, scores)
    for token in set(HISTORY[PROMPT:]):
        count = HISTORY[PROMPT:].count(token)
        scores[0, token] -= case.get("frequency", 0.0) * count + case.get("presence", 0.0)
    if "banned" in case:
        scores = lp.SuppressTokensLogitsProcessor(case["banned"])(ids, scores)
    return scores


@torch.no_grad()
def distribution(case, logits):
    ids = torch.tensor([HISTORY])
    scores = adjusted(case, torch.tensor([logits], dtype=torch.float32), ids)
    warpers = [("temperature", lp.TemperatureLogitsWarper), ("top_k", lp.TopKLogitsWarper),
               ("top_p", lp.TopPLogitsWarper), ("min_p", lp.MinPLogitsWarper),
               ("typical_p", lp.TypicalLogitsWarper)]
    for name, warper in warpers:
        if name in case:
            scores = warper(case[name])(ids, scores)
    return [round(float(p), 7) for p in torch.softmax(scores, -1)[0]]


def main(output):
    cases = []
    for number, case in enumerate(CASES):
        logits = logits_of(number)
        cases.append({"params": case, "logits": logits, "probabilities": distribution(case, logits)})
    result = {"made by": {package.__name__: package.__version__ for package in (torch, transformers)},
              "history": HISTORY, "prompt": PROMPT, "cases": cases}
    with open(output, "w", encoding="utf-8") as file:
        file.write(json.dumps(result, separators=(",", ":")).replace('{"params"', '\n{"params"') + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
