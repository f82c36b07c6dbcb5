#!/usr/bin/env python3
"""Reference logits and greedy continuations, by transformers in float32.

    logits.py MODEL.gguf OUTPUT.json

The GGUF's weights are dequantised by the gguf package and put into a LlamaForCausalLM; the tiny models of
tiny_models.py are made and loaded by transformers itself. Run by `make references`; the tests read the
output and need neither torch nor transformers."""
import hashlib
import json
import os
import sys
import tempfile

import gguf
import numpy
import tokenizers
import torch
import transformers

import fingerprint
import prompts
import tiny_models

GREEDY = 32
TOP = 10


# ---- the GGUF's weights in transformers' terms ---------------------------------------------------

LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def field(reader, key):
    return reader.fields[key].contents()


def unpermute(values, heads):
    """GGUF's llama interleaves the halves of each head of Q and K."""
    rows, cols = values.shape
    return values.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def hugging_face_name(name):
    if name.startswith("blk."):
        _, layer, kind, suffix = name.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[kind]}.{suffix}"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def gguf_model(reader):
    heads = field(reader, "llama.attention.head_count")
    kv_heads = field(reader, "llama.attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=field(reader, "llama.vocab_size"),
        hidden_size=field(reader, "llama.embedding_length"),
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=field(reader, "llama.context_length"),
        rms_norm_eps=field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field(reader, "llama.rope.freq_base")},
        tie_word_embeddings=True, attn_implementation="eager", dtype="float32",
    )
    state = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if ".attn_q." in tensor.name:
            values = unpermute(values, heads)
        if ".attn_k." in tensor.name:
            values = unpermute(values, kv_heads)
        state[hugging_face_name(tensor.name)] = torch.from_numpy(values.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.eval()


def gguf_tokenizer(reader):
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    types = field(reader, "tokenizer.ggml.token_type")
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


# ---- what is written -----------------------------------------------------------------------------

def top_of(row):
    values, ids = torch.topk(row, TOP)
    return [[int(i), round(float(v), 5)] for i, v in zip(ids, values)]


def all_of(row):
    """Every logit, in units of 1e-5."""
    return [round(float(v) * 1e5) for v in row]


@torch.no_grad()
def reference(model, name, ids, key="top", pick=top_of):
    """Greedy continuation, by one pass over the whole text per token: no cache whose own error would count."""
    text, greedy, margins = list(ids), [], []
    for _ in range(GREEDY):
        row = model(torch.tensor([text])).logits[0, -1]
        best = torch.topk(row, 2).values
        greedy.append(int(torch.argmax(row)))
        margins.append(round(float(best[0] - best[1]), 5))
        text.append(greedy[-1])
    rows = model(torch.tensor([text])).logits[0]
    wanted = sorted({0, 1, len(ids) // 2, len(ids) - 1, len(ids), len(ids) + GREEDY // 2, len(text) - 1})
    return {"name": name, "ids": list(ids), "greedy": greedy, "margins": margins,
            "logits": [{"at": at, key: pick(rows[at])} for at in wanted if at < len(text)]}


def tiny_reference(name):
    with tempfile.TemporaryDirectory() as directory:
        tiny_models.write_model(directory, tiny_models.MODELS[name])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [3 + byte for byte in f"{name}: the quick brown fox, {'x' * 60} 0123456789".encode()]
    return [reference(model, name, text, "all", all_of) for text in (ids[:1], ids)]


def write(result, output):
    """One reference a line, so that a change can be read."""
    with open(output, "w", encoding="utf-8") as file:
        file.write(json.dumps(result, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


def main(path, output):
    torch.manual_seed(0)
    reader = gguf.GGUFReader(path)
    model, tokenizer = gguf_model(reader), gguf_tokenizer(reader)
    result = {
        "made by": {package.__name__: package.__version__
                    for package in (torch, transformers, tokenizers, numpy)},
        "model": os.path.basename(path),
        "sha256": hashlib.sha256(open(path, "rb").read()).hexdigest(),
        "fingerprint": fingerprint.of_gguf(reader),
        "prompts": [],
        "tiny": {name: tiny_reference(name) for name in tiny_models.MODELS},
    }
    for name, text in prompts.PROMPTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        result["prompts"].append(reference(model, name, ids))
        print(f"{name}: {len(ids)} tokens, {tokenizer.decode(result['prompts'][-1]['greedy'])!r}", flush=True)
    write(result, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
