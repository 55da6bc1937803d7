#!/usr/bin/env python3
"""Writes a GGUF file of a model's shape with random weights, in the types that llama-quantize would choose.

  benches/quantised_gguf.py MODEL_DIR KIND OUT.gguf

MODEL_DIR has a config.json in Hugging Face format of a Llama or a Qwen3-MoE (benches/models/llama-1b, moe-3b). KIND is
a type for all matrices (BF16, Q8_0, Q6_K, IQ4_XS, ...) or Q4_K_M or Q5_K_M, which take Q6_K for the matrices that
llama-quantize takes it for. The blocks are random bytes with small scales, so that a file of any type takes seconds. It
needs the packages gguf and numpy.
"""
import sys

import gguf
import numpy

import random_gguf
from random_gguf import BASE_TOKENS, Type

directory, kind, out = sys.argv[1:]
config = random_gguf.read_config(directory)
layers, tied = config["num_hidden_layers"], config["tie_word_embeddings"]
random = numpy.random.default_rng(0)

# Where the f16 scales lie in a block (for MXFP4 an exponent), and the size of a value with a scale of one.
SCALES = {
    Type.Q4_0: ([0], 8), Type.Q4_1: ([0, 2], 8), Type.Q5_0: ([0], 16), Type.Q5_1: ([0, 2], 16),
    Type.Q8_0: ([0], 128), Type.Q2_K: ([80, 82], 15), Type.Q3_K: ([108], 128), Type.Q4_K: ([0, 2], 400),
    Type.Q5_K: ([0, 2], 800), Type.Q6_K: ([208], 2000), Type.IQ4_NL: ([0], 100), Type.IQ4_XS: ([0], 2000),
    Type.MXFP4: ([], 1),
}


def blocks(rows, columns, kind):
    """Rows of random bytes with scales that make the values about 1/sqrt(columns)."""
    if kind == Type.BF16:
        values = random.random((rows, columns), dtype=numpy.float32) - numpy.float32(0.5)
        return gguf.quants.quantize(values * numpy.float32(2 / columns**0.5), kind)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, columns // per_block, size), dtype=numpy.uint8)
    places, largest = SCALES[kind]
    scale = numpy.float16(1 / (largest * columns**0.5))
    for place in places:
        data[:, :, place : place + 2] = numpy.frombuffer(scale.tobytes(), dtype=numpy.uint8)
    if kind == Type.MXFP4:
        data[:, :, 0] = 120
    return data.reshape(rows, -1)


def more_bits(layer):
    """As use_more_bits of llama.cpp's src/llama-quant.cpp."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def type_of(name):
    if kind not in ("Q4_K_M", "Q5_K_M"):
        return Type[kind]
    if name == "output" or (name == "token_embd" and tied):
        return Type.Q6_K
    if name.endswith(("attn_v", "ffn_down", "ffn_down_exps")) and more_bits(int(name.split(".")[1])):
        return Type.Q6_K
    return Type[kind.removesuffix("_M")]


def matrix(name, rows, columns):
    return blocks(rows, columns, type_of(name)), type_of(name)


names = [f"<|{token}|>" for token in range(BASE_TOKENS, config["vocab_size"])]
random_gguf.write(out, config, names, matrix, tied)
