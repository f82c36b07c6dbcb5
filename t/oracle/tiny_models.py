#!/usr/bin/env python3
"""Makes small models with random weights in the real architectures, each as a Hugging Face directory and as
a GGUF file.

    tiny_models.py DIRECTORY        writes DIRECTORY/NAME/ and DIRECTORY/NAME.gguf

Weights come from a counter through splitmix64, so that every version of numpy makes the same bytes. The
models differ on purpose in everything that a loader can get wrong: type of the numbers, one file or shards,
tied output, biases, norms of Q and K, heads that do not add up to the hidden size, as many KV heads as heads,
scaled rotary angles, sliding windows. A model's two forms hold the same numbers, so one reference serves both."""
import json
import os
import sys

import gguf
import numpy

VOCABULARY = 260

LINEAR = {"rope_type": "linear", "factor": 2.0}

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
    "tiny-llama2": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "seed": 4, "store": "F16", "shards": 1,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": LINEAR, "tie_word_embeddings": False,
    },
    "tiny-smollm2": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "seed": 5, "store": "BF16", "shards": 1,
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0, "tie_word_embeddings": True,
    },
    "tiny-mistral": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "seed": 6, "store": "F32", "shards": 1,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 24, "tie_word_embeddings": False,
    },
    "tiny-qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "seed": 2, "store": "F16", "shards": 1,
        "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "use_sliding_window": False,
    },
    "tiny-qwen2-window": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "seed": 7, "store": "F32", "shards": 1,
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
        "use_sliding_window": True, "sliding_window": 17, "max_window_layers": 0,
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


def rounded(values, kind):
    """What is left of float32 values when they have been stored as `kind`."""
    if kind == "BF16":
        bits = numpy.frombuffer(store(values, kind), numpy.uint16).astype(numpy.uint32) << 16
        return bits.view(numpy.float32).reshape(values.shape)
    return values.astype(numpy.float16).astype(numpy.float32) if kind == "F16" else values


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


MERGE = ("Q", "j")  # GGUF has no empty list of merges; no text here has this pair


def tokenizer():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {text: i for i, text in enumerate(specials)}
    vocabulary.update({letter: byte + 3 for byte, letter in byte_letters().items()})
    vocabulary["".join(MERGE)] = VOCABULARY - 1
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
                  "ignore_merges": False, "vocab": vocabulary, "merges": [" ".join(MERGE)]},
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


# ---- the same as GGUF ----------------------------------------------------------------------------

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[stem]}.{suffix}"
    return f"{GGUF_NAMES[stem]}.{suffix}"


def interleave(values, heads):
    """The halves of each head of Q and K become pairs, as GGUF's llama wants them."""
    rows, cols = values.shape
    return values.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def llama3_factors(config, head):
    """By how much each pair of dimensions turns slower than without scaling."""
    scaling = config["rope_scaling"]
    factors = []
    for i in range(0, head, 2):
        turns = scaling["original_max_position_embeddings"] * config["rope_theta"] ** (-i / head) / (2 * numpy.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / (keep + (1 - keep) / scaling["factor"]))
    return numpy.array(factors, numpy.float32)


def gguf_metadata(writer, config, head):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
    if config.get("rope_scaling") is LINEAR:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(LINEAR["factor"])


def gguf_tokens(writer):
    tokens = [text for text, _ in sorted(tokenizer()["model"]["vocab"].items(), key=lambda pair: pair[1])]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token.startswith("<|") else normal for token in tokens])
    writer.add_token_merges([" ".join(MERGE)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_add_bos_token(False)


def gguf_tensor(writer, name, values, kind):
    """Vectors are float32 in GGUF, whatever the matrices are."""
    types = {"F32": numpy.float32, "F16": numpy.float16}
    if values.ndim == 1:
        writer.add_tensor(name, values)
    elif kind in types:
        writer.add_tensor(name, values.astype(types[kind]))
    else:
        bits = numpy.frombuffer(store(values, kind), numpy.uint8).reshape(values.shape[0], -1)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_gguf(path, config):
    llama = config["model_type"] in ("llama", "mistral")
    head = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer = gguf.GGUFWriter(path, "llama" if llama else config["model_type"])
    gguf_metadata(writer, config, head)
    gguf_tokens(writer)
    if config.get("rope_scaling") is LLAMA3:
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, head))
    for name, values in weights(config):
        values = rounded(values, config["store"])
        if llama and "q_proj" in name:
            values = interleave(values, config["num_attention_heads"])
        if llama and "k_proj" in name:
            values = interleave(values, config["num_key_value_heads"])
        gguf_tensor(writer, gguf_name(name), numpy.ascontiguousarray(values), config["store"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    for model_name, model_config in MODELS.items():
        write_model(os.path.join(sys.argv[1], model_name), model_config)
        write_gguf(os.path.join(sys.argv[1], model_name + ".gguf"), model_config)
