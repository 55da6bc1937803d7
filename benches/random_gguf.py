"""Writes GGUF files of random weights in the shape of the config.json of a Llama or a Qwen3-MoE. The scripts beside it
import it; it needs the packages gguf and numpy."""

import json
import os

import gguf
import numpy

Type = gguf.GGMLQuantizationType
# The tokens that every file has: 256 bytes, the end (256) and a merge (257).
BASE_TOKENS = 258
END = 256


def byte_texts():
    """The characters that byte-level vocabularies write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def read_config(folder):
    with open(os.path.join(folder, "config.json")) as file:
        return json.load(file)


def experts(config):
    """The number of experts of a layer, all of which have some; 0 for a plain MLP."""
    return config.get("num_experts") or config.get("num_local_experts") or 0


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def projections(config):
    """The matrices of a layer: name, rows and columns. Those of all experts are one below another."""
    hidden, width, count = config["hidden_size"], head_dim(config), experts(config)
    heads, kv_heads = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    attention = [
        ("attn_q", heads, hidden), ("attn_k", kv_heads, hidden), ("attn_v", kv_heads, hidden),
        ("attn_output", hidden, heads),
    ]
    if not count:
        inner = config["intermediate_size"]
        return [*attention, ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)]
    inner = config["moe_intermediate_size"]
    return [
        *attention, ("ffn_gate_exps", count * inner, hidden), ("ffn_up_exps", count * inner, hidden),
        ("ffn_down_exps", count * hidden, inner),
    ]


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path, config, more_tokens, matrix, tied):
    """Writes a model whose vocabulary is BASE_TOKENS and `more_tokens`.

    matrix: a function of a matrix's name ("token_embd", "output", "blk.0.attn_q", ...), rows and columns that returns
        its values in the type of the file, and that type.
    tied: the embedding is the output projection, and there is no matrix "output".
    """
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width, count = head_dim(config), experts(config)
    # A file may be larger than the memory that is free.
    writer = gguf.GGUFWriter(path, "qwen3moe" if count else "llama", use_temp_file=True)
    if count:
        assert config["norm_topk_prob"], "llama.cpp lets the weights of a Qwen3-MoE's experts add up to 1"
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(max(8192, config["max_position_embeddings"]))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config["rope_theta"])
    # A merge is required; its text does not occur.
    tokens = [*byte_texts(), "<|end|>", "\u0120\u0120", *more_tokens]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * END + [3] + [1] * (len(tokens) - END - 1))
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(False)

    def add(name, rows, columns):
        values, kind = matrix(name, rows, columns)
        if name.endswith("_exps"):
            values = values.reshape(count, rows // count, -1)
        writer.add_tensor(f"{name}.weight", values, raw_dtype=kind)

    norm, norm_of_head = numpy.ones(hidden, dtype=numpy.float32), numpy.ones(width, dtype=numpy.float32)
    routers = numpy.random.default_rng(1)
    add("token_embd", len(tokens), hidden)
    if not tied:
        add("output", len(tokens), hidden)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(config["num_hidden_layers"]):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", norm)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
        if count:
            writer.add_tensor(f"blk.{layer}.attn_q_norm.weight", norm_of_head)
            writer.add_tensor(f"blk.{layer}.attn_k_norm.weight", norm_of_head)
            router = routers.standard_normal((count, hidden), dtype=numpy.float32) / numpy.float32(hidden**0.5)
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        for name, rows, columns in projections(config):
            add(f"blk.{layer}.{name}", rows, columns)
    finish(writer)


def write_model(path, config, kind, more_tokens, embedding, output=None, layers=1.0):
    """Writes a model with weights from a normal distribution; see `write`.

    embedding, output: functions of the random generator that return matrices [tokens, hidden] in float32; without
        `output` the two are tied.
    layers: the scale of what each layer adds to the hidden state.
    """
    random = numpy.random.default_rng(0)

    def values(name, rows, columns):
        if name == "token_embd":
            return embedding(random)
        if name == "output":
            return output(random)
        scale = layers if name.endswith(("attn_output", "ffn_down", "ffn_down_exps")) else 1
        return random.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(scale / columns**0.5)

    def matrix(name, rows, columns):
        given = values(name, rows, columns)
        assert given.dtype == numpy.float32 and given.shape == (rows, columns), name
        return gguf.quants.quantize(given, kind), kind

    write(path, config, more_tokens, matrix, tied=output is None)
