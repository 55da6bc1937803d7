#!/usr/bin/env python3
"""Compares the greedy texts of Hearth and llama-server on the tiny models of model/goldens/gguf, which llama.cpp's
converter wrote, one for each family.

  LLAMA_SERVER=.../llama-server benches/gguf_families.py [FAMILY ...]

Both programs compute in f32 with keys and values in f32 and continue the same random token ids for 64 tokens. Where two
texts part, the script prints by how much each program prefers its own token. The models have no tokenizer, so that
copies get one. It needs the packages gguf and numpy.
"""
import sys
import tempfile

from answers import compare
from tiny_gguf import LENGTH, Tiny

FAMILIES = "smollm3 granite olmo2 phi3 gemma2 gemma3 mixtral qwen2moe qwen3moe gpt-oss".split()

with tempfile.TemporaryDirectory() as directory:
    for name in sys.argv[1:] or FAMILIES:
        model = Tiny(name, directory)
        theirs = model.of_llama()
        compare(name, model.of_hearth(), theirs, model.end, LENGTH)
