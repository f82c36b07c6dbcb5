"""Makes t/unit/dequant_vectors.h: blocks of every GGUF format with the floats that the `gguf` package
makes of them. Bytes are random, scales are sane, tiny, negative zero or large.

    build/venv/bin/python t/unit/make_dequant_vectors.py > t/unit/dequant_vectors.h
"""
import random
import struct
from importlib.metadata import version

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

BLOCKS = 6
# format, bytes per block, where its f16 scales lie
FORMATS = [
    (Type.F16, 2, [0]), (Type.BF16, 2, []), (Type.Q4_0, 18, [0]), (Type.Q4_1, 20, [0, 2]),
    (Type.Q5_0, 22, [0]), (Type.Q8_0, 34, [0]), (Type.Q4_K, 144, [0, 2]), (Type.Q6_K, 210, [208]),
]
SCALES = [0.0123, -0.51, 6e-8, -0.0, 40000.0, 1.0]


def block(size, scales, index, generator):
    data = bytearray(generator.randrange(256) for _ in range(size))
    for i, offset in enumerate(scales):
        data[offset:offset + 2] = struct.pack("<e", SCALES[(index + 2 * i) % len(SCALES)])
    return bytes(data)


def rows(values, form, per_line):
    for i in range(0, len(values), per_line):
        yield "    " + " ".join(form % v + "," for v in values[i:i + per_line])


def main():
    generator = random.Random(20240601)
    print(f"/* Made by make_dequant_vectors.py with gguf {version('gguf')}, numpy {np.__version__}. */")
    print("/* clang-format off */")
    for kind, size, scales in FORMATS:
        blocks = BLOCKS if size < 100 else 2
        if size == 2:
            blocks = 64
        data = b"".join(block(size, scales if size > 2 else [], i, generator) for i in range(blocks))
        if kind == Type.BF16 or kind == Type.F16:  # no NaN: its bits are nobody's business
            data = bytes(b & 0xbb if i % 2 else b for i, b in enumerate(data))
        values = dequantize(np.frombuffer(data, np.uint8), kind).astype(np.float32)
        name = kind.name.lower()
        print(f"static const uint8_t {name}_bytes[] = {{")
        print("\n".join(rows(data, "%d", 24)))
        print("};")
        print(f"static const uint32_t {name}_floats[] = {{")
        print("\n".join(rows(values.view(np.uint32).tolist(), "0x%08x", 8)))
        print("};")


main()
