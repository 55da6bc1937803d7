"""How transformers' config classes and rotary functions read a range of config.json files."""

import json
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRotaryEmbedding

HERE = Path(__file__).parent

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SIZES = dict(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=8,
)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(factor=4.0, original_max_position_embeddings=32768)
WINDOW = dict(use_sliding_window=True, sliding_window=64)

# (family, fields beside the sizes; None takes a field away)
CASES = [
    # Defaults.
    *((family, {}) for family in CLASSES),
    *((family, dict(num_key_value_heads=None)) for family in ("llama", "qwen2")),
    ("mistral", dict(num_key_value_heads="absent")),
    ("qwen3", dict(num_key_value_heads="absent")),
    ("llama", dict(num_key_value_heads="absent")),
    # Heads.
    ("llama", dict(head_dim=64)),
    ("mistral", dict(head_dim=128)),
    ("qwen2", dict(head_dim=32)),
    ("qwen3", dict(head_dim=64)),
    # Windows.
    ("mistral", dict(sliding_window=None)),
    ("mistral", dict(sliding_window=128)),
    ("llama", dict(sliding_window=128)),
    ("qwen2", dict(sliding_window=128)),
    ("qwen2", dict(WINDOW, max_window_layers=2)),
    ("qwen2", dict(WINDOW)),
    ("qwen2", dict(use_sliding_window=True, max_window_layers=0)),
    ("qwen3", dict(WINDOW, max_window_layers=0)),
    ("qwen3", dict(WINDOW, max_window_layers=4)),
    ("qwen3", dict(WINDOW, layer_types=["full_attention", "sliding_attention"] * 2)),
    ("qwen2", dict(use_sliding_window=True, sliding_window=None)),
    # Biases and ties.
    ("llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("mistral", dict(attention_bias=True)),
    ("qwen2", dict(attention_bias=False)),
    ("qwen3", dict(attention_bias=True)),
    # Rotary embeddings: old names.
    ("llama", dict(rope_theta=500000.0)),
    ("llama", dict(rope_theta=500000, rope_scaling=None)),
    ("llama", dict(rope_scaling=dict(type="linear", factor=2.0))),
    (
        "llama",
        dict(
            rope_theta=500000.0,
            max_position_embeddings=131072,
            rope_scaling=dict(LLAMA3, rope_type="llama3", original_max_position_embeddings=8192),
        ),
    ),
    ("llama", dict(max_position_embeddings=4096, rope_scaling=dict(LLAMA3, rope_type="llama3"))),
    (
        "llama",
        dict(
            max_position_embeddings=131072,
            original_max_position_embeddings=4096,
            rope_scaling=dict(LLAMA3, rope_type="llama3", original_max_position_embeddings=8192),
        ),
    ),
    ("qwen2", dict(rope_theta=1000000.0, rope_scaling=dict(YARN, type="yarn"))),
    ("qwen3", dict(rope_theta=1000000.0, rope_scaling=dict(YARN, rope_type="yarn"))),
    # Rotary embeddings: new names.
    ("llama", dict(rope_parameters=dict(rope_type="default", rope_theta=2000.0))),
    ("llama", dict(rope_theta=7.0, rope_parameters=dict(rope_type="default", rope_theta=2000.0))),
    ("qwen3", dict(rope_parameters=dict(rope_type="default"), rope_theta=3000.0)),
    ("llama", dict(rope_parameters=dict(YARN, rope_type="yarn", rope_theta=1e6, beta_fast=16.0))),
    (
        "llama",
        dict(rope_parameters=dict(YARN, rope_type="yarn", rope_theta=1e4, attention_factor=0.5)),
    ),
    (
        "llama",
        dict(
            head_dim=64,
            rope_parameters=dict(
                YARN,
                rope_type="yarn",
                rope_theta=1e4,
                mscale=0.707,
                mscale_all_dim=1.2,
                truncate=False,
                beta_fast=24,
                beta_slow=0.5,
            ),
        ),
    ),
    ("llama", dict(head_dim=64, rope_parameters=dict(YARN, rope_type="yarn", factor=1.0))),
    (
        "llama",
        dict(
            max_position_embeddings=65536,
            rope_parameters=dict(YARN, rope_type="yarn", factor=None),
        ),
    ),
    # Partial rotation, which only the scaled types of transformers' Llama read.
    ("llama", dict(head_dim=64, partial_rotary_factor=0.5, rope_scaling=dict(type="linear", factor=4))),
    (
        "llama",
        dict(
            head_dim=96,
            rope_parameters=dict(
                YARN, rope_type="yarn", rope_theta=1e4, partial_rotary_factor=0.25
            ),
        ),
    ),
    ("llama", dict(head_dim=80, partial_rotary_factor=0.4)),
]


def resolve(family, fields):
    source = {**SIZES, "model_type": family, "architectures": [CLASSES[family]], **fields}
    source = {key: value for key, value in source.items() if value != "absent"}
    arguments = json.loads(json.dumps(source))
    arguments.pop("model_type")
    config = AutoConfig.for_model(family, **arguments)

    # The modules are the truth about biases, norms and widths.
    layer = AutoModelForCausalLM.from_config(config).model.layers[0]
    attention = layer.self_attn
    head_dim = attention.head_dim

    rope_type = config.rope_parameters["rope_type"]
    if rope_type == "default":
        # Llama's own default ignores partial rotation; Hearth does not.
        compute = Qwen3NextRotaryEmbedding.compute_default_rope_parameters
    else:
        compute = ROPE_INIT_FUNCTIONS[rope_type]
    frequencies, scaling = compute(config, device="cpu")

    windows = [None] * config.num_hidden_layers
    if family == "mistral":
        windows = [config.sliding_window] * config.num_hidden_layers
    elif family.startswith("qwen"):
        windows = [
            config.sliding_window if kind == "sliding_attention" else None
            for kind in config.layer_types
        ]
    eos = config.eos_token_id
    return {
        "config": source,
        "resolved": {
            "kv_heads": config.num_key_value_heads,
            "head_dim": head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            "tie_word_embeddings": config.tie_word_embeddings,
            "max_position_embeddings": config.max_position_embeddings,
            "qkv_bias": attention.q_proj.bias is not None,
            "output_bias": attention.o_proj.bias is not None,
            "mlp_bias": layer.mlp.up_proj.bias is not None,
            "qk_norm": hasattr(attention, "q_norm"),
            "sliding_window": windows,
            "rope_theta": config.rope_parameters["rope_theta"],
            "bos_token_id": config.bos_token_id,
            "eos_token_ids": [] if eos is None else eos if isinstance(eos, list) else [eos],
            "inverse_frequencies": frequencies.tolist(),
            "attention_scaling": scaling,
        },
    }


def make():
    cases = [resolve(family, fields) for family, fields in CASES]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "configs.json").write_text(f"[\n{lines}\n]\n")
    print(f"configs.json: {len(cases)} cases")
