#!/usr/bin/env python3
"""Measures the GPU itself (copies, bf16 products) and transformers on it: random weights in the shape of a
config.json, a static cache and torch.compile. After each figure it prints a JSON object with all figures so
far, so that the last object of the output is the result.

  gpu_peer.py MODEL_DIR CONTEXT STEPS PREFILL PREFILL_BATCH MANY cuda|cpu

`cpu` is for trying the script out: it measures copies and products in small sizes.
"""
import json
import sys
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

directory, context, steps, prefill, prefill_batch, many = sys.argv[1], *map(int, sys.argv[2:7])
device, dtype = sys.argv[7], torch.bfloat16
on_gpu = device == "cuda"
if on_gpu and not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device")
known = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "device": torch.cuda.get_device_name() if on_gpu else device,
    "decode_tokens_per_s": {},
}


def say(**figures):
    known.update(figures)
    print(json.dumps(known), flush=True)


def wait():
    if on_gpu:
        torch.cuda.synchronize()


def seconds(work, repeats):
    work()
    wait()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        wait()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


source = torch.empty(1 << (30 if on_gpu else 26), dtype=torch.uint8, device=device)
target = torch.empty_like(source)
say(copy_bytes_per_s=2 * source.numel() / seconds(lambda: target.copy_(source), 20))
del source, target
side = 8192 if on_gpu else 512
a = torch.randn(side, side, dtype=dtype, device=device)
say(bf16_flops_per_s=2 * side**3 / seconds(lambda: a @ a, 10))
del a

config = AutoConfig.from_pretrained(directory)
config.dtype = dtype
with torch.device(device):
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
assert model.lm_head.weight.dtype == dtype


def ids(*shape):
    return torch.randint(10, config.vocab_size, shape, device=device)


def decode(batch):
    """Returns tokens a second of the decode steps, without the prompt."""
    cache = StaticCache(config=config, max_cache_len=context + 2 * steps + 8)
    place = torch.arange(context, device=device)
    model(ids(batch, context), past_key_values=cache, cache_position=place, logits_to_keep=1)
    token, place = ids(batch, 1), torch.tensor([context], device=device)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        compiled(token, past_key_values=cache, cache_position=place)
        place.add_(1)

    for _ in range(4):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return batch * steps / (time.perf_counter() - start)


with torch.inference_mode():
    prompts = ids(prefill_batch, prefill)
    took = seconds(lambda: model(prompts, use_cache=False, logits_to_keep=1), 1)
    say(prefill_tokens_per_s=prefill_batch * prefill / took)
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    for batch in (1, many):
        try:
            figure = decode(batch)
        except Exception as error:  # If one batch size does not run, the others are still measured.
            figure = f"not run: {error}"[:300]
        known["decode_tokens_per_s"][batch] = figure
        say()
