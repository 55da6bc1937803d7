"""Tiny checkpoints in the formats of quantized Hugging Face models, and what transformers computes
from their dequantised weights.

Each becomes a directory `quantised/<name>/` with a `golden.safetensors` as `checkpoints.py` makes it,
and a `weights.safetensors` with two of the dequantised matrices (F32).

The packers are written from the published layouts, since AutoAWQ and GPTQModel need a GPU:

* GPTQ (AutoGPTQ, GPTQModel): qweight [in * bits / 32, out], qzeros [groups, out * bits / 32] with 1
  subtracted in v1, scales f16 [groups, out], g_idx [in].
* AWQ (AutoAWQ, version gemm): qweight [in, out / 8] and qzeros [groups, out / 8] in the order
  0 2 4 6 1 3 5 7, scales f16 [groups, out].
* FP8 (DeepSeek-V3, Qwen3-FP8): weight E4M3, weight_scale_inv f32 for each 128 x 128 weights.
* compressed-tensors: packed and unpacked by its own pack_to_int32 and unpack_from_int32.
"""

import json
import shutil
from pathlib import Path

import torch
from checkpoints import ask, chosen, kibibytes, randomise, save_golden
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3Config

HERE = Path(__file__).parent / "quantised"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def pack_words(values, bits, order=None):
    """[rows, n] integers to [rows, n * bits / 32] words, the low bits first."""
    per = 32 // bits
    order = order or list(range(per))
    words = torch.zeros(values.shape[0], values.shape[1] // per, dtype=torch.int64)
    for place, index in enumerate(order):
        words |= values[:, index::per].to(torch.int64) << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def grouped(weight, group, bits, symmetric, generator):
    """Integers [out, in], zero points and scales [out, groups] of a weight, with the arithmetic of
    round to nearest."""
    out, columns = weight.shape
    parts = weight.reshape(out, columns // group, group)
    top = 2**bits - 1
    if symmetric:
        scale = (parts.abs().amax(-1) * 2 / top).to(torch.float16).float()
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scale = ((high - low) / top).to(torch.float16).float()
        zero = (-low / scale).round().clamp(0, top)
    integers = (parts / scale[..., None] + zero[..., None]).round().clamp(0, top)
    return integers.reshape(out, columns), zero, scale


def gptq(weight, generator, bits, group, symmetric=True, act_order=False, version=1):
    out, columns = weight.shape
    group = columns if group == -1 else group
    order = torch.arange(columns) // group
    if act_order:
        order = order[torch.randperm(columns, generator=generator)]
    # Columns of one group side by side, which is how a group gets its scale.
    places = torch.argsort(order, stable=True)
    integers, zero, scale = grouped(weight[:, places], group, bits, symmetric, generator)
    unsorted = torch.empty_like(integers)
    unsorted[:, places] = integers
    values = (unsorted - zero[:, order]) * scale[:, order]
    stored = (zero - 1) % 2**bits if version == 1 else zero
    tensors = {
        "qweight": pack_words(unsorted, bits).T.contiguous(),
        "qzeros": pack_words(stored.T, bits),
        "scales": scale.T.to(torch.float16).contiguous(),
        "g_idx": order.to(torch.int32),
    }
    return tensors, values


def awq(weight, generator, group):
    integers, zero, scale = grouped(weight, group, 4, False, generator)
    repeat = lambda values: values.repeat_interleave(group, 1)
    tensors = {
        "qweight": pack_words(integers.T, 4, AWQ_ORDER),
        "qzeros": pack_words(zero.T, 4, AWQ_ORDER),
        "scales": scale.T.to(torch.float16).contiguous(),
    }
    return tensors, (integers - repeat(zero)) * repeat(scale)


def fp8(weight, generator, block):
    high, wide = block or weight.shape
    rows, columns = weight.shape
    stored = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // high), -(-columns // wide))
    values = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
            scales[i, j] = weight[at].abs().max() / 448
            stored[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
            values[at] = stored[at].float() * scales[i, j]
    name = "weight_scale_inv" if block else "weight_scale"
    return {"weight": stored, name: scales if block else scales.reshape(())}, values


def compressed_packed(weight, generator, bits, group, symmetric, scale_type=torch.float16):
    integers, zero, scale = grouped(weight, group, bits, symmetric, generator)
    scale = scale.to(scale_type)
    middle = 2 ** (bits - 1)
    stored, zero = (integers - middle).to(torch.int8), (zero - middle).to(torch.int8)
    tensors = {
        "weight_packed": pack_to_int32(stored, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0)
        zero = unpack_from_int32(tensors["weight_zero_point"], bits, zero.shape, packed_dim=0)
    # The package itself reads this back.
    stored = unpack_from_int32(tensors["weight_packed"], bits, weight.shape)
    repeat = lambda values: values.float().repeat_interleave(group, 1)
    return tensors, (stored - repeat(zero)) * repeat(scale)


def compressed_int8(weight, generator, symmetric):
    integers, zero, scale = grouped(weight, weight.shape[1], 8, symmetric, generator)
    stored, zero = (integers - 128).to(torch.int8), (zero - 128).to(torch.int8)
    scale = scale.to(torch.bfloat16) if not symmetric else scale.to(torch.float16)
    tensors = {"weight": stored, "weight_scale": scale}
    if not symmetric:
        tensors["weight_zero_point"] = zero
    return tensors, (stored.float() - zero.float()) * scale.float()


def compressed_config(format, **weights):
    return dict(
        quant_method="compressed-tensors",
        format=format,
        ignore=["lm_head"],
        kv_cache_scheme=None,
        config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)),
    )


# name: (quantization_config, the matrix packed, keyword arguments)
CHECKPOINTS = {
    "gptq-4-32": (
        dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True),
        gptq,
        dict(bits=4, group=32),
    ),
    "gptq-4-act-order": (
        dict(quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False),
        gptq,
        dict(bits=4, group=32, symmetric=False, act_order=True),
    ),
    "gptq-8-channel-v2": (
        dict(quant_method="gptq", bits=8, group_size=-1, checkpoint_format="gptq_v2", sym=True),
        gptq,
        dict(bits=8, group=-1, version=2),
    ),
    "gptq-4-old": (
        None,
        gptq,
        dict(bits=4, group=64, symmetric=False),
    ),
    "awq-32": (
        dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"),
        awq,
        dict(group=32),
    ),
    "fp8-block": (
        dict(
            quant_method="fp8",
            fmt="e4m3",
            activation_scheme="dynamic",
            weight_block_size=[48, 32],
        ),
        fp8,
        dict(block=(48, 32)),
    ),
    "fp8-tensor": (
        dict(quant_method="fp8", activation_scheme="dynamic"),
        fp8,
        dict(block=None),
    ),
    "compressed-4": (
        compressed_config(
            "pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32
        ),
        compressed_packed,
        dict(bits=4, group=32, symmetric=True),
    ),
    "compressed-4-asymmetric": (
        compressed_config(
            "pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=32
        ),
        compressed_packed,
        dict(bits=4, group=32, symmetric=False, scale_type=torch.bfloat16),
    ),
    "compressed-int8": (
        compressed_config("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        compressed_int8,
        dict(symmetric=True),
    ),
    "compressed-int8-asymmetric": (
        compressed_config("int-quantized", num_bits=8, type="int", symmetric=False, strategy="channel"),
        compressed_int8,
        dict(symmetric=False),
    ),
}


@torch.no_grad()
def make_one(name, quantization, pack, arguments):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    seed = sum(name.encode())
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomise(model, seed)
    tensors, values = {}, {}
    for key, tensor in model.state_dict().items():
        module = key.removesuffix(".weight")
        if module.endswith(PROJECTIONS):
            packed, value = pack(tensor, generator, **arguments)
            tensors |= {f"{module}.{part}": stored.contiguous() for part, stored in packed.items()}
            if module.endswith(("k_proj", "v_proj")):
                values[key] = value.contiguous()
            tensor.copy_(value)
        elif key != "lm_head.weight":
            stored = tensor.to(torch.float16)
            tensors[key] = stored.clone()
            tensor.copy_(stored)
    model.tie_weights()
    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors")
    save_file(values, path / "weights.safetensors")
    described = json.loads(config.to_json_string(use_diff=False))
    keys = (
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "vocab_size max_position_embeddings tie_word_embeddings rms_norm_eps rope_parameters hidden_act"
    ).split()
    described = {key: described[key] for key in keys}
    described |= dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", dtype="float16")
    if quantization:
        described["quantization_config"] = quantization
    else:
        old = dict(bits=4, group_size=64, desc_act=False, sym=False, true_sequential=True)
        (path / "quantize_config.json").write_text(json.dumps(old, indent=2) + "\n")
    (path / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    *golden, margin = ask(model, config.vocab_size, seed)
    _, prefill, _, decode = golden
    logits = torch.cat([prefill, decode])
    assert logits.std() > 1.0, f"{name}: flat logits"
    save_golden(path / "golden.safetensors", *golden)
    print(f"{name}: {kibibytes(path)} KiB, logits std {logits.std():.2f}, margin {margin:.3f}")


def make(words):
    for name, case in chosen(CHECKPOINTS, words):
        make_one(name, *case)


if __name__ == "__main__":
    make([])
