#!/usr/bin/env python3
"""Makes small models with random weights in the real architectures, as Hugging Face directories.

    tiny_models.py DIRECTORY

Weights come from a counter through splitmix64, so that every version of numpy makes the same bytes. The
three differ on purpose in everything that a loader can get wrong: type of the numbers, one file or shards, tied
output, biases, norms of Q and K, heads that do not add up to the hidden size, scaled rotary angles."""
import json
import os
import sys

import numpy

VOCABULARY = 259

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MODELS = {
    "tiny-llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "seed": 1, "store": "BF16", "shards": 2,
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 500.0, "rope_scaling": LLAMA3, "tie_word_embeddings": False,
    },
    "tiny-qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "seed": 2, "store": "F16", "shards": 1,
        "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "tiny-qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "seed": 3, "store": "F32", "shards": 1,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": False,
    },
}


def uniform(seed, stream, count):
    """count float32 in [-1, 1): splitmix64 of a counter."""
    with numpy.errstate(over="ignore"):
        z = numpy.arange(1, count + 1, dtype=numpy.uint64)
        z = z * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64((seed << 32) + (stream << 8))
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return ((z >> numpy.uint64(40)).astype(numpy.float64) / 2.0**23 - 1.0).astype(numpy.float32)


def shapes(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield prefix + f"self_attn.{name}_proj.weight", (rows, hidden)
            if config["model_type"] == "qwen2":
                yield prefix + f"self_attn.{name}_proj.bias", (rows,)
        if config["model_type"] == "qwen3":
            yield prefix + "self_attn.q_norm.weight", (head,)
            yield prefix + "self_attn.k_norm.weight", (head,)
        yield prefix + "self_attn.o_proj.weight", (hidden, queries)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (VOCABULARY, hidden)


def weights(config):
    for stream, (name, shape) in enumerate(shapes(config)):
        values = uniform(config["seed"], stream, int(numpy.prod(shape))).reshape(shape)
        if name.endswith("norm.weight"):
            values = 1 + values / 4
        elif name.endswith("bias"):
            values = values / 2
        elif "embed" in name:  # small, or a tied output would only repeat its input
            values = values / 16
        else:
            values = values * numpy.float32(2 / shape[-1] ** 0.5)
        yield name, values.astype(numpy.float32)


def store(values, kind):
    """The bytes of float32 values in another type, rounded to nearest even."""
    if kind == "F32":
        return values.tobytes()
    if kind == "F16":
        return values.astype(numpy.float16).tobytes()
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16).tobytes()


def write_safetensors(path, tensors, kind):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors:
        stored = store(values, kind)
        header[name] = {"dtype": kind, "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def byte_letters():
    """The letter that stands for each byte in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, hidden = {}, 0
    for byte in range(256):
        letters[byte] = chr(byte) if byte in shown else chr(256 + hidden)
        hidden += byte not in shown
    return letters


def tokenizer():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {text: i for i, text in enumerate(specials)}
    vocabulary.update({letter: byte + 3 for byte, letter in byte_letters().items()})
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": vocabulary, "merges": []},
    }


def write_model(directory, config):
    os.makedirs(directory, exist_ok=True)
    config = dict(config, hidden_act="silu", vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2)
    tensors = list(weights(config))
    shards = config.pop("shards")
    kind = config.pop("store")
    config.pop("seed")
    if shards == 1:
        write_safetensors(f"{directory}/model.safetensors", tensors, kind)
    else:
        names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, name in enumerate(names):
            write_safetensors(f"{directory}/{name}", tensors[i::shards], kind)
        index = {"metadata": {}, "weight_map": {t[0]: names[i % shards] for i, t in enumerate(tensors)}}
        write_json(f"{directory}/model.safetensors.index.json", index)
    write_json(f"{directory}/config.json", config)
    write_json(f"{directory}/generation_config.json", {"eos_token_id": [2, 0]})
    write_json(f"{directory}/tokenizer.json", tokenizer())
    write_json(f"{directory}/tokenizer_config.json", {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"})


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    for model_name, model_config in MODELS.items():
        write_model(os.path.join(sys.argv[1], model_name), model_config)
