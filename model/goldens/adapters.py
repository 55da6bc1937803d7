"""Random adapters (LoRA) for the tiny checkpoints, and what PEFT computes with them.

Each becomes a directory `adapters/<name>/` as PEFT saves it, with a `golden.safetensors` as those of
the checkpoints. `base_model_name_or_path` names the checkpoint. Adapters whose names begin with
`refused-` have no golden: they use what Hearth does not implement.
"""

import json
import shutil
import warnings
from pathlib import Path

import torch
from gguf import GGUFWriter
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from checkpoints import PROMPT, SMALLEST_MARGIN, run

HERE = Path(__file__).parent
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# name: (checkpoint, config)
ADAPTERS = {
    "list": ("llama-llama3-tied", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "rslora-all": (
        "qwen3",
        dict(r=8, lora_alpha=4, use_rslora=True, target_modules="all-linear"),
    ),
    "patterns-layers": (
        "qwen3-bias-layer-types-old-names",
        dict(
            r=4,
            lora_alpha=6,
            target_modules=ALL,
            layers_to_transform=[0, 2],
            rank_pattern={"q_proj": 2, r"layers\.2\.mlp\.down_proj": 7},
            alpha_pattern={"k_proj": 12, r"^model\.layers\.0\.mlp\.up_proj": 3},
        ),
    ),
    "regex": (
        "qwen2-window",
        dict(
            r=3,
            lora_alpha=5,
            target_modules=r"(?!.*layers\.1\.).*\.(self_attn\.(q|o)_proj|mlp\.gate_proj)",
        ),
    ),
    "lora-bias": (
        "qwen2-window",
        dict(r=4, lora_alpha=8, lora_bias=True, target_modules=["k_proj", "down_proj"]),
    ),
    "tables": (
        "mistral-window",
        dict(r=5, lora_alpha=10, target_modules=["embed_tokens", "lm_head", "up_proj"]),
    ),
    "tied-embedding": (
        "llama-llama3-tied",
        dict(r=4, lora_alpha=4, target_modules=["embed_tokens", "v_proj"]),
    ),
    "dora-all": ("qwen3", dict(r=8, lora_alpha=4, use_dora=True, target_modules="all-linear")),
    "dora-rslora": (
        "qwen3-bias-layer-types-old-names",
        dict(
            r=4,
            lora_alpha=3,
            use_dora=True,
            use_rslora=True,
            target_modules=ALL,
            rank_pattern={"q_proj": 2},
            alpha_pattern={"down_proj": 7},
        ),
    ),
    "dora-bias-all": (
        "qwen2-window",
        dict(r=4, lora_alpha=8, use_dora=True, bias="all", target_modules=["q_proj", "down_proj"]),
    ),
    "dora-tables": (
        "mistral-window",
        dict(r=5, lora_alpha=10, use_dora=True, target_modules=["embed_tokens", "lm_head", "up_proj"]),
    ),
    "bias-lora-only": (
        "qwen2-window",
        dict(r=4, lora_alpha=8, bias="lora_only", target_modules=["k_proj", "down_proj"]),
    ),
    # Whole tables. With tied embeddings, PEFT replaces what it was told to, and the other module keeps the
    # base model's; with ensure_weight_tying both have the saved one.
    "saved-tables": (
        "mistral-window",
        dict(r=4, target_modules=["q_proj", "down_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    ),
    "saved-head-tied": (
        "llama-llama3-tied",
        dict(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    ),
    "saved-embedding-tied": (
        "llama-llama3-tied",
        dict(r=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"]),
    ),
    "saved-tied-ensured": (
        "llama-llama3-tied",
        dict(
            r=4,
            target_modules=["v_proj"],
            modules_to_save=["embed_tokens", "lm_head"],
            ensure_weight_tying=True,
        ),
    ),
    # Its embedding has a factor.
    "saved-tables-gemma": (
        "gemma3",
        dict(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    ),
    # The base model's tables, changed before the adapter was made, and saved with it.
    "changed-tables-tied": ("llama-llama3-tied", dict(r=4, target_modules=["v_proj"])),
    "changed-tables-dora": (
        "mistral-window",
        dict(r=3, lora_alpha=6, use_dora=True, target_modules=["embed_tokens", "lm_head", "q_proj"]),
    ),
    "refused-saved-linear": (
        "mistral-window",
        dict(r=4, target_modules=["q_proj"], modules_to_save=["v_proj"]),
    ),
    "refused-resized": (
        "mistral-window",
        dict(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]),
    ),
    "refused-trainable-tokens": (
        "mistral-window",
        dict(r=4, target_modules=["q_proj"], trainable_token_indices=[3, 5]),
    ),
}


def randomise(model, seed):
    """PEFT starts B at zero: an adapter that does nothing would agree with everything."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.named_parameters()):
        if "magnitude" in name:
            # PEFT starts with the lengths of the base model's rows.
            tensor.mul_(1 + torch.randn(tensor.shape, generator=generator) / 4)
        elif "modules_to_save" in name:
            tensor.add_(torch.randn(tensor.shape, generator=generator) * tensor.std())
        elif "lora_" in name:
            size = tensor.shape[-1] ** 0.5 if "lora_A" in name else 2.0
            tensor.copy_(torch.randn(tensor.shape, generator=generator) / size)
        elif name.endswith(".bias") and tensor.requires_grad:
            tensor.add_(torch.randn(tensor.shape, generator=generator) / 4)


def base_of(checkpoint):
    return AutoModelForCausalLM.from_pretrained(
        HERE / checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def changed_base(name, checkpoint):
    """The base model that an adapter is made of."""
    model = base_of(checkpoint)
    if name.startswith("changed-"):
        generator = torch.Generator().manual_seed(len(name))
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            noise = torch.randn(module.weight.shape, generator=generator)
            module.weight.add_(noise * module.weight.std())
    if name == "refused-resized":
        model.resize_token_embeddings(260, mean_resizing=False)
    return model


def prompt_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (PROMPT,), generator=generator)


def named(path, checkpoint):
    """Names the checkpoint in the configuration, in place of its directory."""
    file = path / "adapter_config.json"
    saved = json.loads(file.read_text())
    saved["base_model_name_or_path"] = checkpoint
    file.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def make_one(name, checkpoint, config):
    path = HERE / "adapters" / name
    shutil.rmtree(path, ignore_errors=True)
    seed = sum(name.encode())
    base = changed_base(name, checkpoint)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config))
    randomise(model, seed)
    # If it is not told, PEFT saves the whole embedding of the base model whenever it is a target.
    model.save_pretrained(path, save_embedding_layers=name.startswith(("changed-", "refused-resized")))
    (path / "README.md").unlink(missing_ok=True)
    if name == "tables":
        # The same adapter as PEFT saves it if it is not told.
        again = path.with_name("tables-with-base")
        shutil.rmtree(again, ignore_errors=True)
        model.save_pretrained(again, save_embedding_layers=True)
        (again / "README.md").unlink(missing_ok=True)
        named(again, checkpoint)
    named(path, checkpoint)
    if name.startswith("refused-"):
        print(name)
        return
    # From the files, so that what is compared is what they say.
    model = PeftModel.from_pretrained(base_of(checkpoint), path).eval()
    margin = 0.0
    while margin < SMALLEST_MARGIN:
        seed += 1
        prompt = prompt_of(seed)
        prefill, tokens, decode, margin = run(model, prompt)
    plain = base_of(checkpoint)(prompt[None]).logits[0]
    change = float((plain - prefill).abs().max())
    assert change > 0.5, f"{name}: the adapter changes nothing: {change}"
    merged = prefill
    # PEFT merges a bias only into a layer that has one, and a tied embedding into both matrices.
    if name not in ("lora-bias", "tied-embedding"):
        merged = model.merge_and_unload()(prompt[None]).logits[0]
    difference = float((merged - prefill).abs().max())
    assert difference < 2e-4, f"{name}: merged and unmerged differ by {difference}"
    save_file(
        {
            "prompt": prompt.to(torch.int32),
            "prefill_logits": prefill.contiguous(),
            "decode_tokens": tokens.to(torch.int32),
            "decode_logits": decode.contiguous(),
        },
        path / "golden.safetensors",
    )
    print(f"{name}: changes logits by {change:.2f}, merged vs unmerged {difference:.1e}")


def permuted(weight, heads):
    """As convert_hf_to_gguf.py stores the rows of queries and keys of Llama."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def make_gguf(name, arch, heads, kv_heads):
    """As llama.cpp's convert_lora_to_gguf.py writes it. Its scale is alpha / rank and nothing else."""
    path = HERE / "adapters" / name
    config = json.loads((path / "adapter_config.json").read_text())
    writer = GGUFWriter(str(path) + ".gguf", arch)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    alpha = config["lora_alpha"]
    if config["use_rslora"]:
        alpha *= config["r"] ** 0.5
    writer.add_float32("adapter.lora.alpha", float(alpha))
    parts = dict(
        q_proj="attn_q",
        k_proj="attn_k",
        v_proj="attn_v",
        o_proj="attn_output",
        gate_proj="ffn_gate",
        up_proj="ffn_up",
        down_proj="ffn_down",
    )
    for tensor, values in sorted(load_file(path / "adapter_model.safetensors").items()):
        _, _, _, _, layer, _, module, factor, _ = tensor.split(".")
        if arch == "llama" and factor == "lora_B" and module in ("q_proj", "k_proj"):
            values = permuted(values, heads if module == "q_proj" else kv_heads)
        part = f"blk.{layer}.{parts[module]}.weight.{factor.lower()}"
        writer.add_tensor(part, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(words):
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True)
    for name, (checkpoint, config) in ADAPTERS.items():
        if not words or any(word in name for word in words):
            make_one(name, checkpoint, config)
    if not words:
        make_gguf("list", "llama", 3, 1)
        make_gguf("rslora-all", "qwen3", 4, 2)
