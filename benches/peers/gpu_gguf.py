#!/usr/bin/env python3
"""Writes a GGUF file of random bf16 weights in the shape of a Llama's config.json, without a vocabulary,
which is enough for llama-bench.

  gpu_gguf.py MODEL_DIR FILE.gguf
"""
import json
import os
import struct
import sys

import numpy

UINT32, FLOAT32, STRING = 4, 6, 8
F32, BF16 = 0, 30
ALIGNMENT = 32

directory, path = sys.argv[1:]
with open(os.path.join(directory, "config.json")) as file:
    config = json.load(file)
hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
kv_heads = config.get("num_key_value_heads", heads)
width = config.get("head_dim") or hidden // heads


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, value):
    packed = text(value) if kind == STRING else struct.pack("<I" if kind == UINT32 else "<f", value)
    return text(key) + struct.pack("<I", kind) + packed


metadata = [
    entry("general.architecture", STRING, "llama"),
    entry("llama.block_count", UINT32, layers),
    entry("llama.context_length", UINT32, config["max_position_embeddings"]),
    entry("llama.embedding_length", UINT32, hidden),
    entry("llama.feed_forward_length", UINT32, inner),
    entry("llama.attention.head_count", UINT32, heads),
    entry("llama.attention.head_count_kv", UINT32, kv_heads),
    entry("llama.attention.key_length", UINT32, width),
    entry("llama.attention.value_length", UINT32, width),
    entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"]),
    entry("llama.rope.dimension_count", UINT32, width),
    entry("llama.rope.freq_base", FLOAT32, config.get("rope_theta") or config["rope_parameters"]["rope_theta"]),
    entry("llama.vocab_size", UINT32, vocab),
    entry("tokenizer.ggml.model", STRING, "no_vocab"),
]
tensors = [("token_embd", (vocab, hidden)), ("output_norm", (hidden,))]
if not config.get("tie_word_embeddings"):
    tensors.append(("output", (vocab, hidden)))
for layer in range(layers):
    tensors += [(f"blk.{layer}.{name}", shape) for name, shape in [
        ("attn_norm", (hidden,)), ("ffn_norm", (hidden,)),
        ("attn_q", (heads * width, hidden)), ("attn_k", (kv_heads * width, hidden)),
        ("attn_v", (kv_heads * width, hidden)), ("attn_output", (hidden, heads * width)),
        ("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden)), ("ffn_down", (hidden, inner)),
    ]]


def values(shape):
    if len(shape) == 1:
        return numpy.ones(shape, numpy.float32).tobytes()
    normal = numpy.random.default_rng(0).standard_normal(shape[1] * 64, numpy.float32) * 0.02
    rows = (normal.view(numpy.uint32) >> 16).astype(numpy.uint16).reshape(64, shape[1])
    # The same rows are repeated, because only the speed is measured.
    return numpy.tile(rows, (-(-shape[0] // 64), 1))[:shape[0]].tobytes()


infos, offset = b"", 0
for name, shape in tensors:
    # GGUF lists the fastest dimension first.
    sizes = b"".join(struct.pack("<Q", size) for size in reversed(shape))
    infos += text(f"{name}.weight") + struct.pack("<I", len(shape)) + sizes
    infos += struct.pack("<IQ", F32 if len(shape) == 1 else BF16, offset)
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    offset += -(-count * (4 if len(shape) == 1 else 2) // ALIGNMENT) * ALIGNMENT
with open(path + ".part", "wb") as file:
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata) + infos)
    file.write(bytes(-file.tell() % ALIGNMENT))
    for _, shape in tensors:
        data = values(shape)
        file.write(data + bytes(-len(data) % ALIGNMENT))
os.rename(path + ".part", path)
