"""The fingerprint of weights, written a second time from worker/model/README.md alone."""
import hashlib

PIECE = 4 << 20


def integer(value):
    return value.to_bytes(8, "little")


def text(value):
    return integer(len(value.encode())) + value.encode()


def tensor_node(name, kind, shape, data):
    """`shape` row-major, `data` the bytes as they lie in the file."""
    head = b"\x01" + text(name) + text(kind) + integer(len(shape)) + b"".join(map(integer, shape))
    leaves = [hashlib.sha256(b"\x00" + data[i : i + PIECE]).digest() for i in range(0, len(data), PIECE)]
    return hashlib.sha256(head + b"".join(leaves)).digest()


def root(tensors):
    """Of (name, kind, shape, data) tuples."""
    nodes = [tensor_node(*tensor) for tensor in sorted(tensors, key=lambda tensor: tensor[0].encode())]
    return hashlib.sha256(b"\x02" + integer(len(nodes)) + b"".join(nodes)).hexdigest()


def of_gguf(reader):
    """Of a gguf.GGUFReader."""
    return root(
        (tensor.name, tensor.tensor_type.name, [int(size) for size in reversed(tensor.shape)], tensor.data.tobytes())
        for tensor in reader.tensors
    )


if __name__ == "__main__":  # the known answer of t/unit/test_fingerprint.c
    pattern = bytes(i * 7 % 251 for i in range(9 << 20))
    print(root([
        ("small", "F32", [4], pattern[:16]),
        ("whole", "Q8_0", [2048, 2048], pattern[: 2048 * 2048 // 32 * 34]),
        ("pieces", "F16", [2, PIECE // 2], pattern[: 2 * PIECE]),
        ("a", "BF16", [2, 3], pattern[5:17]),
    ]))
