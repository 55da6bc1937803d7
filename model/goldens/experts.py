"""Tiny random mixtures of experts, as directories like those of checkpoints.py.

transformers writes one tensor for each expert; `merged` checkpoints have one for all experts of a
layer instead, under the names of its modules. `mxfp4` checkpoints of GPT-OSS have the experts in
blocks of 32 values with an exponent, as OpenAI released them.
"""

import json
import re
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from checkpoints import HERE, ask, check, chosen, kibibytes, save_golden, sized

# name: (config, how it is saved)
CHECKPOINTS = {
    # Always renormalised; a window.
    "mixtral": (
        MixtralConfig(
            **sized(hidden_size=32, num_attention_heads=4),
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=20,
        ),
        {},
    ),
    # A plain MLP below, then experts and a shared one; weights that do not add up to one.
    "qwen2-moe": (
        Qwen2MoeConfig(
            **sized(hidden_size=32, num_attention_heads=4, num_hidden_layers=3),
            mlp_only_layers=[0],
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=40,
            norm_topk_prob=False,
        ),
        {},
    ),
    # Experts in every second layer, merged tensors, renormalised.
    "qwen2-moe-step-merged": (
        Qwen2MoeConfig(
            **sized(hidden_size=32, num_attention_heads=4, num_hidden_layers=4, vocab_size=128),
            decoder_sparse_step=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            norm_topk_prob=True,
        ),
        {"merged": True},
    ),
    "qwen3-moe": (
        Qwen3MoeConfig(
            **sized(hidden_size=32, num_attention_heads=4),
            head_dim=16,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            tie_word_embeddings=True,
        ),
        {},
    ),
    # The other spelling of the number of experts, merged tensors, weights not renormalised.
    "qwen3-moe-bf16-merged": (
        Qwen3MoeConfig(
            **sized(hidden_size=32, num_attention_heads=4, num_hidden_layers=3),
            head_dim=8,
            mlp_only_layers=[1],
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            norm_topk_prob=False,
            attention_bias=True,
        ),
        {"merged": True, "dtype": torch.bfloat16, "spelling": "num_experts"},
    ),
    # Sinks, windows of every second layer, yarn whose bounds are not whole numbers.
    "gpt-oss": (
        GptOssConfig(
            **sized(hidden_size=32, intermediate_size=32, num_attention_heads=4),
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=12,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=150000.0,
                factor=4.0,
                beta_fast=8.0,
                beta_slow=0.25,
                truncate=False,
                original_max_position_embeddings=32,
            ),
        ),
        {"dtype": torch.bfloat16},
    ),
    "gpt-oss-mxfp4": (
        GptOssConfig(
            **sized(hidden_size=64, intermediate_size=32, num_attention_heads=4, vocab_size=128),
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=9,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=150000.0,
                factor=32.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=32,
            ),
        ),
        {"mxfp4": True, "dtype": torch.bfloat16},
    ),
}

# The values of four bits: a sign, two bits of exponent and one of mantissa.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M1 = torch.cat([E2M1, -E2M1])


def randomise(model, seed):
    """As for the other checkpoints, with values that suit the parameters which only these have."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = torch.rand(tensor.shape, generator=generator) + 0.5
        elif name.endswith(("bias", "sinks")):
            values *= 0.4
        elif "experts." in name:
            # GPT-OSS keeps them `[experts, in, out]`, the others `[experts, out, in]`.
            columns = tensor.shape[1 if model.config.model_type == "gpt_oss" else 2]
            values *= (2.0 if "gate_up" in name else 1.0) / columns**0.5
        else:
            table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
            values *= (2 if table else 1.5) / tensor.shape[1] ** 0.5
        tensor.copy_(values)
    model.tie_weights()


def merge(tensors):
    """One tensor `[experts, rows, columns]` for all experts of a layer."""
    merged, parts = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if match:
            prefix, expert, which = match.groups()
            parts.setdefault(prefix, {})[int(expert), which] = tensor
        else:
            merged[name] = tensor
    for prefix, found in parts.items():
        experts = range(1 + max(expert for expert, _ in found))
        both = [torch.cat([found[e, "gate"], found[e, "up"]]) for e in experts]
        merged[f"{prefix}.gate_up_proj"] = torch.stack(both)
        merged[f"{prefix}.down_proj"] = torch.stack([found[e, "down"] for e in experts])
    return merged


def to_mxfp4(tensor):
    """Rounds `[experts, in, out]` to blocks along `in`: two values a byte `[experts, out, in / 32,
    16]`, exponents `[experts, out, in / 32]`, and what they mean."""
    rows = tensor.float().transpose(1, 2)
    experts, out, columns = rows.shape
    blocks = rows.reshape(experts, out, columns // 32, 32)
    exponent = blocks.abs().amax(-1).clamp(min=1e-9).log2().floor() - 2
    scaled = blocks / exponent.exp2()[..., None]
    codes = (scaled[..., None] - E2M1).abs().argmin(-1)
    values = E2M1[codes] * exponent.exp2()[..., None]
    pairs = codes.reshape(experts, out, columns // 32, 16, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    meaning = values.reshape(experts, out, columns).transpose(1, 2).contiguous()
    return packed, (exponent + 127).to(torch.uint8), meaning


def quantise(tensors):
    """The tensors in blocks, and the same in floats."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, meant[name] = to_mxfp4(tensor)
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        else:
            stored[name] = meant[name] = tensor
    return stored, meant


def change_config(path, **changes):
    config = json.loads(path.read_text())
    config = {key: value for key, value in (config | changes).items() if value is not None}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def make_one(name, config, dtype=torch.float32, merged=False, mxfp4=False, spelling=None):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    seed = sum(name.encode())
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    model.to(dtype).save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    file = path / "model.safetensors"
    tensors = load_file(file)
    if mxfp4:
        tensors, meant = quantise(tensors)
        save_file(meant, file, metadata={"format": "pt"})
    # From the files, so that what is compared is what they say.
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    *golden, margin = ask(model, config.vocab_size, seed)
    about = check(name, model, *golden, margin)
    if merged:
        tensors = merge(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    if mxfp4:
        method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
        change_config(path / "config.json", quantization_config=method)
    if spelling:
        change_config(
            path / "config.json", num_local_experts=None, **{spelling: config.num_local_experts}
        )
    save_golden(path / "golden.safetensors", *golden)
    print(f"{name}: {kibibytes(path)} KiB, {about}")


def make(words):
    torch.use_deterministic_algorithms(True)
    for name, (config, saved) in chosen(CHECKPOINTS, words):
        make_one(name, config, **saved)
