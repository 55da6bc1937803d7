"""Writes GGUF files of random weights in the shape of a config.json. The scripts beside it import it; it needs the
packages gguf and numpy."""

import json
import os

import gguf
import numpy

Type = gguf.GGMLQuantizationType


def byte_texts():
    """The characters that byte-level vocabularies write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as file:
        return json.load(file)


def write_model(path, config, kind, more_tokens, embedding, output, layers=1.0):
    """Writes a model whose vocabulary is 256 bytes, the end (256), a merge (257), and `more_tokens`.

    embedding, output: functions of the random generator that return matrices [tokens, hidden] in float32.
    layers: the scale of what each layer adds to the hidden state.
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(8192)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(10000.0)
    # A merge is required; its text does not occur.
    tokens = [*byte_texts(), "<|end|>", "\u0120\u0120", *more_tokens]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] + [1] * (len(tokens) - 257))
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    writer.add_add_bos_token(False)

    def add(name, values):
        assert values.dtype == numpy.float32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def matrix(rows, columns, scale=1.0):
        return random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(scale / columns**0.5)

    add("token_embd.weight", embedding(random))
    add("output.weight", output(random))
    norm = numpy.ones(hidden, dtype=numpy.float32)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(config["num_hidden_layers"]):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", norm)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
        for name, rows, columns, scale in [
            ("attn_q", heads * width, hidden, 1), ("attn_k", kv_heads * width, hidden, 1),
            ("attn_v", kv_heads * width, hidden, 1), ("attn_output", hidden, heads * width, layers),
            ("ffn_gate", inner, hidden, 1), ("ffn_up", inner, hidden, 1), ("ffn_down", hidden, inner, layers),
        ]:
            add(f"blk.{layer}.{name}.weight", matrix(rows, columns, scale))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
