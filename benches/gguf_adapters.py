#!/usr/bin/env python3
"""Compares the greedy texts of Hearth and llama-server with adapters (LoRA) in GGUF, on tiny models in f32.

  LLAMA_SERVER=.../llama-server benches/gguf_adapters.py

The adapters are those of model/goldens/adapters that llama.cpp's converter wrote, and random ones for every plain
projection of models of other families. Both programs continue the same random token ids for 64 tokens, with the adapter
and without it. It prints how many texts the adapter changes, too. It needs the packages gguf and numpy.
"""
import os
import tempfile

import gguf
import numpy

from answers import compare
from random_gguf import finish
from tiny_gguf import GOLDENS, LENGTH, Tiny

CONVERTED = [("llama-llama3-tied", "list"), ("qwen3", "rslora-all")]
RANDOM = "llama-llama3-tied qwen3 smollm3 granite olmo2 gemma2 gemma3".split()
RANK = 4
PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def write_adapter(model, path):
    random = numpy.random.default_rng(3)
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 6.0)
    for tensor in model.reader.tensors:
        if not tensor.name.endswith(tuple(f".{name}.weight" for name in PROJECTIONS)):
            continue
        columns, rows = map(int, tensor.shape)
        for factor, shape in (("a", (RANK, columns)), ("b", (rows, RANK))):
            values = random.standard_normal(shape, dtype=numpy.float32) / numpy.float32(shape[1] ** 0.5)
            writer.add_tensor(f"{tensor.name}.lora_{factor}", values)
    finish(writer)


def ids(answer):
    return [[token for token, _ in tokens] for tokens in answer]


with tempfile.TemporaryDirectory() as directory:
    runs = [(name, GOLDENS / "adapters" / f"{adapter}.gguf") for name, adapter in CONVERTED]
    for name, path in [*runs, *((name, None) for name in RANDOM)]:
        model = Tiny(name, directory)
        title = f"{name}, {path.name if path else 'random'}"
        if path is None:
            path = os.path.join(directory, "adapter.gguf")
            write_adapter(model, path)
        theirs = model.of_llama("--lora", str(path))
        ours = model.of_hearth("--enable-lora", "--lora-modules", f"one={path}", adapter="one")
        base = model.of_hearth()
        compare(title, ours, theirs, model.end, LENGTH)
        changed = sum(with_it != without for with_it, without in zip(ids(ours), ids(base)))
        print(f"{title}: the adapter changes {changed} of {len(base)} texts")
