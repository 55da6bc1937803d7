#!/usr/bin/env python3
"""Writes a GGUF file of a model's shape with random weights, in the types that llama-quantize would choose.

  benches/quantised_gguf.py MODEL_DIR KIND OUT.gguf

MODEL_DIR has a config.json in Hugging Face format of a Llama (benches/models/llama-1b). KIND is a type for all
matrices (Q8_0, Q6_K, IQ4_XS, ...) or Q4_K_M or Q5_K_M, which take Q6_K for the matrices that llama-quantize takes it
for. The blocks are random bytes with small scales, so that a file of any type takes seconds. It needs the packages
gguf and numpy.
"""
import json
import os
import sys

import gguf
import numpy
from gguf import GGMLQuantizationType as Type

directory, kind, out = sys.argv[1:]
with open(os.path.join(directory, "config.json")) as file:
    config = json.load(file)
layers, hidden, inner = (config[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size"))
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
width = config.get("head_dim") or hidden // heads
vocab, tied = config["vocab_size"], config["tie_word_embeddings"]
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


def type_of(name, layer=0):
    if kind not in ("Q4_K_M", "Q5_K_M"):
        return Type[kind]
    if name == "output" or (name == "token_embd" and tied):
        return Type.Q6_K
    if name in ("attn_v", "ffn_down") and more_bits(layer):
        return Type.Q6_K
    return Type[kind.removesuffix("_M")]


writer = gguf.GGUFWriter(out, "llama")
writer.add_block_count(layers)
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(hidden)
writer.add_feed_forward_length(inner)
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_key_length(width)
writer.add_value_length(width)
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_rope_dimension_count(width)
writer.add_rope_freq_base(config["rope_theta"])
writer.add_vocab_size(vocab)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("llama-bpe")
# The characters that byte-level vocabularies write bytes with, a merge, and names for the other tokens.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = iter(range(256, 512))
texts = [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
writer.add_token_list([*texts, "\u0120\u0120", *(f"<|{token}|>" for token in range(257, vocab))])
writer.add_token_types([1] * 257 + [3] * (vocab - 257))
writer.add_token_merges(["\u0120 \u0120"])
writer.add_eos_token_id(vocab - 1)
writer.add_bos_token_id(vocab - 2)


def add(name, rows, columns, layer=None):
    kind = type_of(name, layer or 0)
    name = f"{name}.weight" if layer is None else f"blk.{layer}.{name}.weight"
    writer.add_tensor(name, blocks(rows, columns, kind), raw_dtype=kind)


norm = numpy.ones(hidden, dtype=numpy.float32)
add("token_embd", vocab, hidden)
if not tied:
    add("output", vocab, hidden)
writer.add_tensor("output_norm.weight", norm)
for layer in range(layers):
    writer.add_tensor(f"blk.{layer}.attn_norm.weight", norm)
    writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
    add("attn_q", heads * width, hidden, layer)
    add("attn_k", kv_heads * width, hidden, layer)
    add("attn_v", kv_heads * width, hidden, layer)
    add("attn_output", hidden, heads * width, layer)
    add("ffn_gate", inner, hidden, layer)
    add("ffn_up", inner, hidden, layer)
    add("ffn_down", hidden, inner, layer)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
