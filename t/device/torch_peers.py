#!/usr/bin/env python3
"""torch's kernels on the shapes of the stage `shapes`, one figure a line. Never run on a GPU so far."""
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"this Python has no torch: {error}")
    sys.exit(77)
if not torch.cuda.is_available():
    print("this Python's torch sees no GPU")
    sys.exit(77)

SHAPES = {
    "llama-3.1-8b": dict(heads=32, kv_heads=8, dim=128, hidden=4096, feed_forward=14336),
    "qwen2.5-7b": dict(heads=28, kv_heads=4, dim=128, hidden=3584, feed_forward=18944),
}


def seconds_of(work):
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times[2:])[2]


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def figure(name, unit, value):
    print(json.dumps({"name": name, "unit": unit, "value": value}), flush=True)


def attention(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def main():
    for name, s in SHAPES.items():
        for tokens in (2048, 8192):
            q, k = tensor(1, s["heads"], tokens, s["dim"]), tensor(1, s["kv_heads"], tokens, s["dim"])
            seconds = seconds_of(lambda: attention(q, k, k, True))
            figure(f"{name}: torch prefill attention of {tokens} tokens", "TFLOP/s",
                   2e-12 * s["heads"] * s["dim"] * tokens * tokens / seconds)
            x, w = tensor(tokens, s["hidden"]), tensor(2 * s["feed_forward"], s["hidden"])
            figure(f"{name}: torch gate and up of {tokens} tokens", "TFLOP/s",
                   4e-12 * tokens * s["hidden"] * s["feed_forward"] / seconds_of(lambda: F.linear(x, w)))
        for batch in (1, 64):
            q, k = tensor(batch, s["heads"], 1, s["dim"]), tensor(batch, s["kv_heads"], 4096, s["dim"])
            seconds = seconds_of(lambda: attention(q, k, k, False))
            figure(f"{name}: torch decode attention, {batch} after 4096 tokens", "GB/s",
                   2e-9 * k.numel() * 2 / seconds)
            x, w = tensor(batch, s["hidden"]), tensor(2 * s["feed_forward"], s["hidden"])
            figure(f"{name}: torch gate and up of {batch} tokens", "GB/s",
                   2e-9 * w.numel() / seconds_of(lambda: F.linear(x, w)))


if __name__ == "__main__":
    main()
