"""Tiny GGUF files of the families that llama.cpp's own converter writes, and their goldens.

    python gguf_families.py /path/to/llama.cpp [name ...]

    gguf/<family>.gguf          without a tokenizer
    gguf/<family>.safetensors   what transformers computes, as the others' (see checkpoints.py)

The converter has no place for some fields of `config.json`, which llama.cpp knows by the architecture:
the layers without rotation of SmolLM3, and the order of windows of Gemma. The configurations here are as
it expects them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

import checkpoints

HERE = Path(__file__).parent
OUT = HERE / "gguf"
PROMPT, DECODE = 40, 8
SIZES = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
EXPERTS = dict(num_experts_per_tok=2, num_hidden_layers=2)
LAYERS = ["sliding_attention", "full_attention"]
CONFIGS = {
    "smollm3": ("SmolLM3Config", dict(num_hidden_layers=4, tie_word_embeddings=True)),
    "granite": (
        "GraniteConfig",
        dict(
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            attention_multiplier=0.25,
            logits_scaling=2.0,
        ),
    ),
    "olmo2": ("Olmo2Config", dict()),
    "phi3": (
        "Phi3Config",
        dict(
            sliding_window=17,
            partial_rotary_factor=0.75,
            original_max_position_embeddings=32,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                partial_rotary_factor=0.75,
                original_max_position_embeddings=32,
                short_factor=[1.0, 1.1, 1.3],
                long_factor=[1.0, 2.0, 3.5],
            ),
        ),
    ),
    "gemma2": (
        "Gemma2Config",
        dict(
            num_hidden_layers=4,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=9,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
        ),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            num_hidden_layers=7,
            hidden_size=24,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=9,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                sliding_attention=dict(rope_type="default", rope_theta=1e4),
            ),
        ),
    ),
    "mixtral": ("MixtralConfig", dict(**EXPERTS, num_local_experts=4)),
    "qwen2moe": (
        "Qwen2MoeConfig",
        dict(
            **EXPERTS,
            num_experts=6,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=24,
            norm_topk_prob=False,
        ),
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        dict(
            **EXPERTS, num_experts=6, moe_intermediate_size=16, head_dim=16, norm_topk_prob=True
        ),
    ),
    "gpt-oss": (
        "GptOssConfig",
        dict(
            **EXPERTS,
            num_local_experts=4,
            intermediate_size=32,
            head_dim=16,
            sliding_window=9,
            layer_types=LAYERS,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=150000.0,
                factor=4.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=32,
            ),
        ),
    ),
}
# Runs the converter without a tokenizer.
CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
sys.argv = ["convert", *sys.argv[2:]]
import convert_hf_to_gguf as convert
from conversion import ModelBase, base
def none(self):
    self._set_vocab_none()
def subclasses(kind):
    return [kind, *(other for one in kind.__subclasses__() for other in subclasses(one))]
real = convert.get_model_class
def get(*arguments, **keywords):
    found = real(*arguments, **keywords)
    for kind in subclasses(base.TextModel):
        kind.set_vocab = none
    return found
convert.get_model_class = get
convert.main()
"""


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("norm.weight"):
            values = 1 + values * 0.2
            if "Gemma" in type(model).__name__:
                values -= 1
        elif "bias" in name or tensor.ndim == 1:
            values *= 0.3
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            values *= 2 / tensor.shape[1] ** 0.5
        else:
            values *= 1.5 / tensor.shape[-1] ** 0.5
        tensor.copy_(values)
    model.tie_weights()


@torch.no_grad()
def make(llama_cpp, name):
    kind, changes = CONFIGS[name]
    changes = {**SIZES, **changes}
    config = getattr(transformers, kind)(**changes)
    seed = sum(name.encode())
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model, seed)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        # The converter counts the tokens of Gemma.
        vocabulary = {f"t{i}": i for i in range(config.vocab_size)}
        tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
        Path(scratch, "tokenizer.json").write_text(json.dumps(tokenizer))
        out = str(OUT / f"{name}.gguf")
        command = [sys.executable, "-c", CONVERT, llama_cpp, scratch, "--outtype", "f32"]
        subprocess.run([*command, "--outfile", out], check=True, capture_output=True)
        model = AutoModelForCausalLM.from_pretrained(
            scratch, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    checkpoints.DECODE = DECODE
    *golden, margin = checkpoints.ask(model, config.vocab_size, seed, PROMPT, first=3)
    prompt, prefill, tokens, decode = golden
    whole = model(torch.cat([prompt, tokens])[None], use_cache=False).logits[0]
    worst = (whole[PROMPT:] - decode).abs().max().item()
    checkpoints.save_golden(OUT / f"{name}.safetensors", *golden)
    size = (OUT / f"{name}.gguf").stat().st_size // 1000
    print(f"{name}: std {prefill.std():.2f}, margin {margin:.3f}, cache {worst:.1e}, {size} kB")


if __name__ == "__main__":
    for name in sys.argv[2:] or CONFIGS:
        make(sys.argv[1], name)
