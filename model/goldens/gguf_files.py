"""Tiny GGUF files, and what the `gguf` package and transformers make of them.

    python gguf_files.py /path/to/llama-quantize

    gguf/<name>.gguf        a checkpoint of this directory in f32; its golden is <name>'s
    gguf/mixed.gguf         every block type, quantised by llama.cpp, with a tokenizer
    gguf/q8_0.gguf          the same weights, every matrix in one type; q4_0.gguf too
    gguf/<these>.safetensors their goldens, as the others' (see checkpoints.py)
    gguf/rounded.safetensors values, and their blocks by gguf.quants.quantize
    gguf/blocks.gguf        a model whose matrices are random bytes in the types that mixed.gguf lacks
    gguf/types.gguf         tensors of random bytes in every type
    gguf/types.safetensors  their values by gguf.quants.dequantize
    gguf/byte-level.gguf    a tokenizer only: that of tokenizers/byte-level; gpt2, digits and o200k too
    gguf/pieces.gguf        a tokenizer only: SentencePiece's, which tokenizers/pieces has cases of
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import checkpoints
import text

HERE = Path(__file__).parent
OUT = HERE / "gguf"
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Which matrix of mixed.gguf gets which type.
MIXED = {
    "attn_q": "q4_0",
    "attn_k": "q4_1",
    "attn_v": "q5_0",
    "attn_output": "q5_1",
    "ffn_gate": "q4_K",
    "ffn_up": "q5_K",
    "ffn_down": "q8_0",
    "token_embd": "q6_K",
}


def gguf_name(name):
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{suffix}"


def permuted(weights, heads):
    """As LlamaModel.permute of llama.cpp's conversion/llama.py."""
    shape = weights.shape
    halves = weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return halves.swapaxes(1, 2).reshape(shape)


def unpermuted(weights, heads):
    shape = weights.shape
    pairs = weights.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
    return pairs.swapaxes(1, 2).reshape(shape)


def heads_of(name, config):
    if config["model_type"] != "llama":
        return None
    for part, key in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
        if part in name:
            return config[key]
    return None


def llama3_factors(rope, head_dim):
    """As LlamaModel.generate_extra_tensors of llama.cpp's conversion/llama.py."""
    base, factor = rope["rope_theta"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (i / head_dim)
        if wavelength < context / high:
            factors.append(1)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def write(path, config, tensors, tokenizer=None):
    writer = gguf.GGUFWriter(path, config["model_type"])
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if tokenizer:
        tokenizer(writer)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, head_dim))
    for name, values in sorted(tensors.items()):
        name = gguf_name(name)
        count = heads_of(name, config)
        writer.add_tensor(name, values if count is None else permuted(values, count))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def whole(name):
    path = HERE / name
    tensors = {}
    for file in sorted(path.glob("model*.safetensors")):
        tensors.update(load_file(file))
    config = json.loads((path / "config.json").read_text())
    write(OUT / f"{name}.gguf", config, tensors)


def sentencepiece(writer):
    """Scores that make SentencePiece merge in the order of the merges."""
    file = json.loads((HERE / "tokenizers/sentencepiece/tokenizer.json").read_text())
    tokens = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
    rank = {a + b: -float(i) for i, (a, b) in enumerate(file["model"]["merges"])}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([rank.get(token, -1e6) for token in tokens])
    writer.add_token_types(
        [6 if token.startswith("<0x") else kinds.get(token, 1) for token in tokens]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")


def byte_level(name, pre):
    file = json.loads((HERE / f"tokenizers/{name}/tokenizer.json").read_text())
    vocabulary = dict(file["model"]["vocab"])
    kinds = {}
    for added in file["added_tokens"]:
        vocabulary[added["content"]] = added["id"]
        kinds[added["content"]] = 3 if added["special"] else 4
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, 1) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in file["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    write_header(writer)


def write_header(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pieces():
    """SentencePiece's vocabulary as llama.cpp's converter writes Gemma's."""
    processor = text.pieces()
    writer = gguf.GGUFWriter(OUT / "pieces.gguf", "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    ids = range(processor.vocab_size())
    kinds = {3: 2, **{i: 3 for i in ids if processor.is_control(i)}}
    kinds |= {i: 6 for i in ids if processor.is_byte(i)}
    writer.add_token_list([processor.id_to_piece(i) for i in ids])
    writer.add_token_scores([processor.get_score(i) for i in ids])
    writer.add_token_types([kinds.get(i, 1) for i in ids])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_space_prefix(False)
    write_header(writer)


# Where the f16 scales lie in a block, if not at its start.
SCALES = {
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q6_K: [208],
    Type.MXFP4: [],
    **{kind: [0, 2] for kind in (Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K)},
}


def types():
    """Random bytes but for the scales, which are small and finite."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(OUT / "types.gguf", "llama")
    expected = {}
    rows, columns = 3, 256
    names = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
    names += ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
    for index, name in enumerate(names):
        kind = Type[name]
        if name in ("F32", "F16", "BF16"):
            values = random.standard_normal((rows, columns), dtype=np.float32)
            data = gguf.quants.quantize(values, kind)
        else:
            per_block, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = random.integers(0, 256, (rows, columns // per_block, size), dtype=np.uint8)
            for at in SCALES.get(kind, [0]):
                scale = random.standard_normal(blocks.shape[:2]).astype(np.float16) / 64
                blocks[:, :, at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
            data = blocks.reshape(rows, -1)
        writer.add_tensor(f"blk.{index}.ffn_up.weight", data, raw_dtype=kind)
        expected[f"model.layers.{index}.mlp.up_proj.weight"] = gguf.quants.dequantize(data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, OUT / "types.safetensors")


def blocks():
    """Scales are such that the values of each matrix are about 1/16."""
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(OUT / "blocks.gguf", "llama")
    hidden = 256
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    norm = np.ones(hidden, dtype=np.float32)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", norm)
    for name, rows, kind in [
        ("token_embd", 48, Type.Q6_K),
        ("blk.0.attn_q", hidden, Type.Q2_K),
        ("blk.0.attn_k", hidden // 2, Type.Q3_K),
        ("blk.0.attn_v", hidden // 2, Type.IQ4_NL),
        ("blk.0.attn_output", hidden, Type.IQ4_XS),
        ("blk.0.ffn_gate", hidden, Type.MXFP4),
        ("blk.0.ffn_up", hidden, Type.Q4_K),
        ("blk.0.ffn_down", hidden, Type.Q5_K),
    ]:
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        data = random.integers(0, 256, (rows, hidden // per_block, size), dtype=np.uint8)

        def scaled(scale):
            for at in SCALES.get(kind, [0]):
                data[:, :, at : at + 2] = np.array([scale], dtype=np.float16).view(np.uint8)
            if kind == Type.MXFP4:
                data[:, :, 0] = 121
            return gguf.quants.dequantize(data.reshape(rows, -1), kind)

        scaled(1 / 16 / scaled(1).std())
        writer.add_tensor(f"{name}.weight", data.reshape(rows, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded():
    """Rows of several sizes of numbers, one of zeros among them, and halves between two steps."""
    random = np.random.default_rng(1)
    values = random.standard_normal((8, 320), dtype=np.float32)
    values *= np.float32(10.0) ** np.arange(-6, 2, dtype=np.float32)[:, None]
    values[3] = 0
    values[4, :32] = np.arange(-16, 16, dtype=np.float32) / 2
    values[4, 0] = 127
    values[5, :32] = np.arange(-16, 16, dtype=np.float32) / 2
    tensors = {"values": values}
    for name in ("Q8_0", "Q4_0"):
        tensors[name] = gguf.quants.quantize(values, Type[name])
    save_file(tensors, OUT / "rounded.safetensors")


@torch.no_grad()
def quantised(quantize, out, kinds, kind):
    config = LlamaConfig(
        vocab_size=406,
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    )
    model = LlamaForCausalLM(config)
    checkpoints.randomise(model, 1)
    tensors = {
        name: tensor.numpy()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "f32.gguf"
        write(source, config.to_dict(), tensors, sentencepiece)
        kinds = [
            argument
            for name, kind in kinds.items()
            for argument in ("--tensor-type", f"{name}={kind}")
        ]
        command = [quantize, *kinds, str(source), str(OUT / f"{out}.gguf"), kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    names = {gguf_name(name): name for name in tensors}
    state = {}
    for tensor in gguf.GGUFReader(OUT / f"{out}.gguf").tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape(tuple(int(side) for side in reversed(tensor.shape)))
        count = heads_of(tensor.name, config.to_dict())
        values = values if count is None else unpermuted(values, count)
        state[names[tensor.name]] = torch.from_numpy(values.copy())
        print(out, tensor.name, tensor.tensor_type.name, values.shape)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    model = model.eval()
    model.set_attn_implementation("eager")
    checkpoints.DECODE = 8
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, 406, (16,), generator=generator)
    prefill, tokens, decode, margin = checkpoints.run(model, prompt)
    print(f"{out}: logits std {prefill.std():.2f}, margin {margin:.3f}")
    golden = {
        "prompt": prompt.to(torch.int32),
        "prefill_logits": prefill,
        "decode_tokens": tokens.to(torch.int32),
        "decode_logits": decode,
    }
    save_file({k: v.numpy() for k, v in golden.items()}, OUT / f"{out}.safetensors")


def main():
    OUT.mkdir(exist_ok=True)
    for name in ("llama-llama3-tied", "qwen2-sharded-tied", "qwen3"):
        whole(name)
    # The pattern that this tokenizer was trained with, under a name without more to it.
    byte_level("byte-level", "smaug-bpe")
    byte_level("gpt2", "gpt-2")
    byte_level("digits", "refact")
    byte_level("o200k", "gpt-4o")
    pieces()
    types()
    blocks()
    rounded()
    quantised(sys.argv[1], "mixed", MIXED, "Q8_0")
    for kind in ("q8_0", "q4_0"):
        quantised(sys.argv[1], kind, {name: kind for name in MIXED}, kind.upper())


if __name__ == "__main__":
    main()
