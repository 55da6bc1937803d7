"""How transformers' config classes and rotary functions read a range of config.json files."""

import json
from pathlib import Path

import torch
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


# Families whose description has more than a plain block; see `describe`.
MORE_CLASSES = {
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
DENSE_GRANITE = dict(
    num_local_experts=0,
    num_experts_per_tok=0,
    shared_intermediate_size=384,
    layer_types=["attention"] * 4,
    mamba_n_heads=8,
    mamba_d_head=64,
)
LONGROPE = dict(
    type="longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3],
    long_factor=[1.5, 2.5, 3.5, 4.5],
)
PARTIAL = dict(max_position_embeddings=131072, original_max_position_embeddings=4096)

MORE_CASES = [
    ("smollm3", dict(pad_token_id=0)),
    ("smollm3", dict(pad_token_id=0, no_rope_layer_interval=2, num_key_value_heads="absent")),
    ("smollm3", dict(pad_token_id=0, no_rope_layers=[1, 0, 0, 1], attention_bias=True)),
    (
        "smollm3",
        dict(pad_token_id=0, use_sliding_window=True, sliding_window=64, rope_theta=5e6),
    ),
    ("granite", dict()),
    (
        "granite",
        dict(
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
            logits_scaling=8.0,
            tie_word_embeddings=True,
            rope_theta=1e7,
            mlp_bias=True,
        ),
    ),
    ("granitemoehybrid", dict(DENSE_GRANITE, position_embedding_type="rope", embedding_multiplier=12)),
    ("granitemoehybrid", dict(DENSE_GRANITE, position_embedding_type="nope", logits_scaling=3)),
    ("olmo2", dict(pad_token_id=0)),
    ("olmo2", dict(rope_theta=500000, attention_bias=True, num_key_value_heads="absent")),
    ("phi3", dict(pad_token_id=0)),
    ("phi3", dict(pad_token_id=0, sliding_window=2047, num_key_value_heads="absent")),
    ("phi3", dict(PARTIAL, pad_token_id=0, rope_scaling=LONGROPE)),
    (
        "phi3",
        dict(
            PARTIAL,
            pad_token_id=0,
            partial_rotary_factor=0.5,
            hidden_size=512,
            rope_scaling=dict(LONGROPE, attention_factor=1.5),
        ),
    ),
    ("gemma2", dict()),
    ("gemma2", dict(head_dim=64, query_pre_attn_scalar=144, sliding_window=128)),
    (
        "gemma2",
        dict(attn_logit_softcapping=None, final_logit_softcapping=20.0, attention_bias=True),
    ),
    ("gemma3_text", dict()),
    (
        "gemma3_text",
        dict(
            num_hidden_layers=7,
            sliding_window=512,
            rope_theta=1000000,
            rope_local_base_freq=10000,
            rope_scaling=dict(rope_type="linear", factor=8.0),
        ),
    ),
    (
        "gemma3_text",
        dict(
            sliding_window_pattern=2,
            query_pre_attn_scalar=168,
            rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=2e6),
                sliding_attention=dict(rope_type="default", rope_theta=3e3),
            ),
        ),
    ),
]


def configured(family, name, fields):
    """The fields of a `config.json` of the class `name`, and the configuration that transformers makes of it."""
    source = {**SIZES, "model_type": family, "architectures": [name], **fields}
    source = {key: value for key, value in source.items() if value != "absent"}
    # A copy, because classes change what they are given.
    arguments = json.loads(json.dumps(source))
    arguments.pop("model_type")
    return source, AutoConfig.for_model(family, **arguments)


def ids(eos):
    return [] if eos is None else eos if isinstance(eos, list) else [eos]


def resolve(family, fields):
    source, config = configured(family, CLASSES[family], fields)

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
            "eos_token_ids": ids(config.eos_token_id),
            "inverse_frequencies": frequencies.tolist(),
            "attention_scaling": scaling,
        },
    }


def describe(family, fields):
    """The behaviour of a family's modules, which are the truth about it."""
    source, config = configured(family, MORE_CLASSES[family], fields)
    model = AutoModelForCausalLM.from_config(config)
    body, layer = model.model, model.model.layers[0]
    attention, rotary = layer.self_attn, model.model.rotary_emb
    mlp = getattr(layer, "mlp", None) or layer.shared_mlp
    stacked = hasattr(attention, "qkv_proj")
    query = attention.qkv_proj if stacked else attention.q_proj
    gate = next(getattr(mlp, name) for name in ("gate_proj", "gate_up_proj", "input_linear") if hasattr(mlp, name))
    width = gate.out_features // (1 if hasattr(mlp, "gate_proj") else 2)

    def window(layer):
        own = getattr(layer.self_attn, "sliding_window", None)
        return config.sliding_window if family == "phi3" else own

    def rotates(layer):
        return rotary is not None and bool(getattr(layer.self_attn, "use_rope", True))

    if rotary is None:
        frequencies, scaling = [], 1.0
    elif family == "gemma3_text":
        # A rotation that no layer uses is not made.
        none = torch.zeros(0)
        frequencies = [
            getattr(rotary, f"{kind}_attention_inv_freq", none).tolist()
            for kind in ("full", "sliding")
        ]
        scaling = 1.0
    else:
        frequencies, scaling = [rotary.inv_freq.tolist()], rotary.attention_scaling
    long = None
    if config.rope_parameters.get("rope_type") == "longrope":
        length = config.rope_parameters["original_max_position_embeddings"] + 1
        long = ROPE_INIT_FUNCTIONS["longrope"](config, device="cpu", seq_len=length)[0].tolist()
    norms = [
        hasattr(layer, name)
        for name in ("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    ]
    q_norm = getattr(attention, "q_norm", None)
    scaled = getattr(body.embed_tokens, "scalar_embed_scale", None)
    return {
        "config": source,
        "described": {
            "kv_heads": config.num_key_value_heads,
            "head_dim": attention.head_dim,
            "rms_norm_eps": config.rms_norm_eps,
            "tie_word_embeddings": config.tie_word_embeddings,
            "max_position_embeddings": config.max_position_embeddings,
            "qkv_bias": query.bias is not None,
            "output_bias": attention.o_proj.bias is not None,
            "mlp_bias": gate.bias is not None,
            "stacked": stacked,
            "width": width,
            "activation": type(getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None) or mlp.activation).__name__,
            "norms": norms,
            # Weights of norms begin at 0 where they are stored as their difference from 1.
            "norms_from_one": float(layer.post_attention_layernorm.weight[0]) == 0.0,
            "q_norm": None if q_norm is None else q_norm.weight.shape[0],
            "embedding_scale": scaled or getattr(body, "embedding_multiplier", 1.0),
            "residual_scale": getattr(layer, "residual_multiplier", 1.0),
            "attention_scale": attention.scaling,
            "attention_cap": getattr(attention, "attn_logit_softcapping", None),
            "logit_divisor": getattr(config, "logits_scaling", 1.0),
            "logit_cap": getattr(config, "final_logit_softcapping", None),
            "windows": [window(layer) for layer in body.layers],
            "rotates": [rotates(layer) for layer in body.layers],
            "bos_token_id": config.bos_token_id,
            "eos_token_ids": ids(config.eos_token_id),
            "inverse_frequencies": frequencies,
            "long_frequencies": long,
            "attention_scaling": scaling,
        },
    }


def make_families():
    cases = [describe(family, fields) for family, fields in MORE_CASES]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "families.json").write_text(f"[\n{lines}\n]\n")
    print(f"families.json: {len(cases)} cases")


def make():
    make_families()
    cases = [resolve(family, fields) for family, fields in CASES]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "configs.json").write_text(f"[\n{lines}\n]\n")
    print(f"configs.json: {len(cases)} cases")
