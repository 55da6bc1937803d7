"""Tiny random checkpoints and what transformers computes with them.

Each becomes a directory `<name>/` in Hugging Face format with a `golden.safetensors` beside it:

    prompt          I32 [P]      input ids
    prefill_logits  F32 [P, V]   logits at every prompt position
    decode_tokens   I32 [D]      greedy continuation; [0] follows the last prompt position
    decode_logits   F32 [D, V]   logits after decode_tokens[i] was fed

in float32 with eager attention on the CPU; decoding uses transformers' KV cache.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SiglipVisionConfig,
    SmolLM3Config,
)
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_next import modeling_qwen3_next

HERE = Path(__file__).parent
PROMPT, DECODE = 48, 32
# Below this the greedy choice would hang on rounding, and the test on luck.
SMALLEST_MARGIN = 0.02

SIZES = dict(
    vocab_size=256,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=128,
)


# Heads wider than hidden / heads.
HEADS = dict(num_attention_heads=4, head_dim=16)


def sized(**changes):
    return {**SIZES, **changes}


# name: (config, how it is saved)
CHECKPOINTS = {
    # Grouped queries, tied embeddings, Llama 3.1 frequencies in all three of their ranges.
    "llama-llama3-tied": (
        LlamaConfig(
            **sized(num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-5),
            tie_word_embeddings=True,
            eos_token_id=[250, 251],
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        {},
    ),
    # Every bias, heads wider than hidden / heads, linear scaling, half of each head rotated.
    "llama-bias-linear-partial": (
        LlamaConfig(
            **sized(hidden_size=40, num_attention_heads=4),
            head_dim=16,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(
                rope_type="linear", rope_theta=1000.0, factor=2.0, partial_rotary_factor=0.5
            ),
        ),
        {"partial": True},
    ),
    "llama-yarn": (
        LlamaConfig(
            **sized(num_attention_heads=3, num_key_value_heads=3),
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                original_max_position_embeddings=32,
                beta_fast=8.0,
                beta_slow=0.25,
            ),
        ),
        {},
    ),
    # Plain multi-head attention, f16, the config under its names of before transformers 5.
    "llama-f16-old-names": (
        LlamaConfig(
            **sized(num_attention_heads=3, num_key_value_heads=3),
            rope_parameters=dict(rope_type="default", rope_theta=500.0),
        ),
        {"dtype": torch.float16, "old_names": True},
    ),
    "mistral-window": (
        MistralConfig(
            **sized(),
            sliding_window=16,
            rope_parameters=dict(rope_type="default", rope_theta=1000.0),
        ),
        {},
    ),
    "mistral-window-bf16": (
        MistralConfig(**sized(num_hidden_layers=3), head_dim=16, sliding_window=11),
        {"dtype": torch.bfloat16},
    ),
    # The upper layers see a window, the lower one everything.
    "qwen2-window": (
        Qwen2Config(
            **sized(num_hidden_layers=3, intermediate_size=48),
            use_sliding_window=True,
            sliding_window=12,
            max_window_layers=1,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        {},
    ),
    "qwen2-sharded-tied": (
        Qwen2Config(**sized(), tie_word_embeddings=True),
        {"shard": "64KB"},
    ),
    "qwen3": (
        Qwen3Config(
            **sized(hidden_size=40, num_attention_heads=4),
            head_dim=16,
            tie_word_embeddings=True,
        ),
        {},
    ),
    "qwen3-bias-layer-types-old-names": (
        Qwen3Config(
            **sized(hidden_size=40, num_attention_heads=4, num_hidden_layers=3),
            head_dim=8,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=9,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=2.0,
                original_max_position_embeddings=64,
            ),
        ),
        {"old_names": True},
    ),
    # Layers 2 and 4 rotate nothing; every bias.
    "smollm3": (
        SmolLM3Config(
            **sized(**HEADS, num_hidden_layers=4, intermediate_size=48, hidden_size=40),
            no_rope_layer_interval=2,
            attention_bias=True,
            mlp_bias=True,
            pad_token_id=0,
            rope_parameters=dict(rope_type="default", rope_theta=2000.0),
        ),
        {},
    ),
    # A list of the layers that rotate, with a window in those that do not.
    "smollm3-window": (
        SmolLM3Config(
            **sized(**HEADS, num_hidden_layers=3, hidden_size=32),
            no_rope_layers=[0, 1, 0],
            use_sliding_window=True,
            sliding_window=10,
            tie_word_embeddings=False,
            pad_token_id=0,
        ),
        {},
    ),
    "granite": (
        GraniteConfig(
            **sized(num_attention_heads=3, num_key_value_heads=1),
            attention_bias=True,
            mlp_bias=True,
            embedding_multiplier=1.5,
            residual_multiplier=0.22,
            attention_multiplier=0.4,
            logits_scaling=0.35,
        ),
        {},
    ),
    # Granite 4 without experts: a stacked MLP, no rotation.
    "granite4-nope": (
        GraniteMoeHybridConfig(
            **sized(num_attention_heads=3, num_key_value_heads=1),
            shared_intermediate_size=56,
            num_local_experts=0,
            num_experts_per_tok=0,
            layer_types=["full_attention", "full_attention"],
            position_embedding_type="nope",
            embedding_multiplier=0.5,
            residual_multiplier=0.7,
            attention_multiplier=0.3,
            logits_scaling=0.3,
            mamba_n_heads=4,
            mamba_d_head=24,
        ),
        {},
    ),
    # Norms after attention and MLP, and over all queries and all keys.
    "olmo2": (
        Olmo2Config(
            **sized(num_attention_heads=4),
            attention_bias=True,
            pad_token_id=0,
            eos_token_id=250,
        ),
        {},
    ),
    # Stacked projections, half of each head rotated, a window. All sequences are longer than the
    # original length, so that the long factors apply.
    "phi3-long": (
        Phi3Config(
            **sized(num_attention_heads=3, num_key_value_heads=1),
            original_max_position_embeddings=16,
            sliding_window=40,
            pad_token_id=0,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=1000.0,
                partial_rotary_factor=0.5,
                short_factor=[1.0, 1.1, 1.3, 1.4],
                long_factor=[1.2, 2.0, 4.5, 7.0],
                original_max_position_embeddings=16,
            ),
        ),
        {},
    ),
    # As long as the server's contexts, so that the short factors apply; bf16, old names.
    "phi3-short-bf16": (
        Phi3Config(
            **{**sized(num_attention_heads=4), "max_position_embeddings": 512},
            original_max_position_embeddings=128,
            pad_token_id=0,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=1.0,
                short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
                long_factor=[2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
                original_max_position_embeddings=128,
            ),
        ),
        {"dtype": torch.bfloat16, "old_names": True},
    ),
    # Bounds of scores and logits that are reached, windows in every other layer.
    "gemma2": (
        Gemma2Config(
            **sized(hidden_size=40, num_attention_heads=4, num_hidden_layers=3),
            head_dim=16,
            attention_bias=True,
            sliding_window=12,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        {},
    ),
    # Two rotations, the global one scaled; norms of heads.
    "gemma3": (
        Gemma3TextConfig(
            **sized(hidden_size=40, num_attention_heads=4, num_hidden_layers=4, intermediate_size=48),
            head_dim=16,
            sliding_window=9,
            query_pre_attn_scalar=12,
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": dict(rope_type="linear", factor=4.0, rope_theta=5000.0),
                "sliding_attention": dict(rope_type="default", rope_theta=100.0),
            },
        ),
        {},
    ),
    # The text of a model with images, whose weights are in bf16 and whose vision tower is as small as can be.
    "gemma3-text-of-images": (
        Gemma3Config(
            text_config=dict(
                **sized(num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=3),
                head_dim=16,
                sliding_window=11,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            ),
            vision_config=SiglipVisionConfig(
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                image_size=16,
                patch_size=8,
            ).to_dict(),
            mm_tokens_per_image=4,
            boi_token_index=253,
            eoi_token_index=254,
            image_token_index=255,
        ),
        {"dtype": torch.bfloat16},
    ),
}


def randomise(model, seed):
    """Values under which every part matters: transformers starts biases at 0 and norms at 1,
    and its 0.02 makes attention uniform and logits flat."""
    generator = torch.Generator().manual_seed(seed)
    # Gemma stores the difference from 1.
    lowest = -0.5 if model.config.model_type.startswith("gemma") else 0.5
    for name, tensor in sorted(model.state_dict().items()):
        if "vision" in name or "projector" in name:
            continue
        if name.endswith("norm.weight"):
            values = torch.rand(tensor.shape, generator=generator) + lowest
        elif name.endswith("bias"):
            values = torch.randn(tensor.shape, generator=generator) * 0.3
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            values = torch.randn(tensor.shape, generator=generator) * 2 / tensor.shape[1] ** 0.5
        else:
            values = torch.randn(tensor.shape, generator=generator) * 1.5 / tensor.shape[1] ** 0.5
        tensor.copy_(values)
    model.tie_weights()


def rename_as_before_v5(path):
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.37.0"
    path.write_text(json.dumps(config, indent=2) + "\n")


def run(model, prompt):
    """Prefill and greedy decoding, and the smallest distance from first to second choice."""
    output = model(prompt[None], use_cache=True)
    prefill = output.logits[0]
    tokens, rows, last = [], [], prefill[-1]
    margin = float("inf")
    for _ in range(DECODE):
        first, second = last.topk(2).values.tolist()
        margin = min(margin, first - second)
        tokens.append(int(last.argmax()))
        output = model(
            torch.tensor([[tokens[-1]]]), past_key_values=output.past_key_values, use_cache=True
        )
        last = output.logits[0, -1]
        rows.append(last)
    return prefill, torch.tensor(tokens), torch.stack(rows), margin


def ask(model, vocab, seed, length=PROMPT, first=0):
    """A random prompt under which no greedy choice is close, and what `run` returns for it."""
    margin = 0.0
    while margin < SMALLEST_MARGIN:
        seed += 1
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(first, vocab, (length,), generator=generator)
        prefill, tokens, decode, margin = run(model, prompt)
    return prompt, prefill, tokens, decode, margin


def check(name, model, prompt, prefill, tokens, decode, margin):
    """Checks that one pass over everything agrees, and that logits differ. Returns words for a log."""
    whole_pass = model(torch.cat([prompt, tokens])[None], use_cache=False).logits[0]
    cached = torch.cat([prefill, decode])
    difference = float((whole_pass - cached).abs().max())
    assert difference < 1e-4, f"{name}: cached and uncached differ by {difference}"
    assert cached.std() > 1.0, f"{name}: flat logits ({cached.std()})"
    return (
        f"logits std {cached.std():.2f}, margin {margin:.3f}, "
        f"distinct tokens {len(set(tokens.tolist()))}, cached vs whole {difference:.1e}"
    )


def save_golden(path, prompt, prefill, tokens, decode):
    golden = {
        "prompt": prompt.to(torch.int32),
        "prefill_logits": prefill.contiguous(),
        "decode_tokens": tokens.to(torch.int32),
        "decode_logits": decode.contiguous(),
    }
    save_file(golden, path)


def kibibytes(path):
    return sum(file.stat().st_size for file in path.iterdir()) // 1024


def chosen(cases, words):
    """The cases whose names contain one of the words, or all without words."""
    return [(name, case) for name, case in cases.items() if not words or any(word in name for word in words)]


@torch.no_grad()
def make_one(name, config, dtype=torch.float32, old_names=False, partial=False, shard="5GB"):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    # Llama's own rotation takes no partial heads (and ignores the field under the default
    # rope type); transformers' half-split partial rotation lives in its newer families.
    whole = modeling_llama.apply_rotary_pos_emb
    if partial:
        modeling_llama.apply_rotary_pos_emb = modeling_qwen3_next.apply_rotary_pos_emb
    try:
        seed = sum(name.encode())
        model = AutoModelForCausalLM.from_config(config)
        randomise(model, seed)
        model.to(dtype).save_pretrained(path, max_shard_size=shard)
        (path / "generation_config.json").unlink(missing_ok=True)
        if old_names:
            rename_as_before_v5(path / "config.json")
        # From the files, so that what is compared is what they say.
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        *golden, margin = ask(model, config.get_text_config().vocab_size, seed)
        about = check(name, model, *golden, margin)
    finally:
        modeling_llama.apply_rotary_pos_emb = whole
    save_golden(path / "golden.safetensors", *golden)
    print(f"{name}: {kibibytes(path)} KiB, {about}")


def make(words):
    torch.use_deterministic_algorithms(True)
    for name, (config, saved) in chosen(CHECKPOINTS, words):
        make_one(name, config, **saved)
