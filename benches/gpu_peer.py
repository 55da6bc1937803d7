#!/usr/bin/env python3
"""What the GPU itself does (copies, bf16 products) and what transformers makes of it: random
weights in the shape of a config.json, a static cache and torch.compile. Prints JSON.

  gpu_peer.py MODEL_DIR CONTEXT STEPS PREFILL PREFILL_BATCH
"""
import json
import sys
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device")
device, dtype = "cuda", torch.bfloat16


def seconds(work, repeats):
    work()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
target = torch.empty_like(source)
copied = 2 * source.numel() / seconds(lambda: target.copy_(source), 20)
del source, target
a = torch.randn(8192, 8192, dtype=dtype, device=device)
flops = 2 * 8192**3 / seconds(lambda: a @ a, 10)
del a

directory, context, steps, prefill, prefill_batch = sys.argv[1], *map(int, sys.argv[2:6])
config = AutoConfig.from_pretrained(directory)
with torch.device(device):
    model = AutoModelForCausalLM.from_config(config, torch_dtype=dtype).eval()
out = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "device": torch.cuda.get_device_name(),
    "copy_bytes_per_s": copied,
    "bf16_flops_per_s": flops,
    "decode_tokens_per_s": {},
}
with torch.inference_mode():
    ids = torch.randint(10, 1000, (prefill_batch, prefill), device=device)
    took = seconds(lambda: model(ids, use_cache=False, logits_to_keep=1), 1)
    out["prefill_tokens_per_s"] = prefill_batch * prefill / took
    decode = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    for batch in (1, 64):
        try:
            cache = StaticCache(config=config, max_cache_len=context + 2 * steps + 8)
            model(torch.randint(10, 1000, (batch, context), device=device), past_key_values=cache,
                  cache_position=torch.arange(context, device=device), logits_to_keep=1)
            token = torch.randint(10, 1000, (batch, 1), device=device)
            place = torch.tensor([context], device=device)

            def step():
                torch.compiler.cudagraph_mark_step_begin()
                decode(token, past_key_values=cache, cache_position=place)
                place.add_(1)

            for _ in range(4):
                step()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
            out["decode_tokens_per_s"][batch] = batch * steps / (time.perf_counter() - start)
        except Exception as error:  # One shape that does not run says nothing of the others.
            out["decode_tokens_per_s"][batch] = f"not run: {error}"[:300]
print(json.dumps(out))
