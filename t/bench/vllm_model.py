"""Run by vLLM's python: a GGUF file as the directory with bf16 safetensors that vLLM reads.  vllm_model.py FILE DIRECTORY"""

import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    source, target = sys.argv[1:]
    where, name = os.path.split(source)
    os.makedirs(target, exist_ok=True)
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    del model.config.quantization_config
    model.config.dtype = "bfloat16"
    model.config.save_pretrained(target)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in model.state_dict().items() if key not in tied}
    save_file(weights, os.path.join(target, "model.safetensors"), {"format": "pt"})


main()
