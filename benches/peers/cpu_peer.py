#!/usr/bin/env python3
"""Measures transformers (torch) or mistral.rs (its PyPI wheel) on the CPU: prefill of 512 tokens, and
decoding of 48 tokens alone and of 8 x 48 at once, after 4 tokens each. It prints `pp512 N`, `tg48 N` and
`tg48x8 N` in tokens a second, and `MiB N`, the peak memory of the process.

  cpu_peer.py transformers MODEL_DIR f32|bf16
  cpu_peer.py mistralrs MODEL_DIR f32|bf16|Q8_0|Q4_0

MODEL_DIR has a config.json in Hugging Face format. For mistral.rs it must have weights as well:
`cpu_peer.py weights MODEL_DIR OUT_DIR` makes random ones, with a tokenizer of numbers.
"""
import json
import os
import pathlib
import random
import resource
import sys
import time

PREFILL, STEPS, BATCH = 512, 48, 8
threads = str(os.cpu_count())
os.environ.setdefault("OMP_NUM_THREADS", threads)
os.environ.setdefault("RAYON_NUM_THREADS", threads)


def rate(tokens, work):
    """Returns tokens a second of the second of two runs; the first one warms up."""
    work()
    start = time.perf_counter()
    work()
    return tokens / (time.perf_counter() - start)


def transformers(directory, dtype):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(int(threads))
    config = AutoConfig.from_pretrained(directory)
    # Otherwise the type that the configuration names would be used.
    config.dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype).eval()
    assert model.lm_head.weight.dtype == config.dtype

    def ids(*shape):
        return torch.randint(10, config.vocab_size, shape)

    def prefill():
        model(ids(1, PREFILL), use_cache=True, logits_to_keep=1)

    def decode(batch):
        """Returns tokens a second of the decode steps, without the prompt."""
        cache = DynamicCache(config=config)
        model(ids(batch, 4), past_key_values=cache, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(STEPS):
            logits = model(ids(batch, 1), past_key_values=cache, logits_to_keep=1).logits
            logits[:, -1].argmax(-1)
        return batch * STEPS / (time.perf_counter() - start)

    with torch.inference_mode():
        yield "pp512", rate(PREFILL, prefill)
        for name, batch in [("tg48", 1), ("tg48x8", BATCH)]:
            decode(batch)
            yield name, decode(batch)


def mistralrs(directory, dtype):
    from mistralrs import ChatCompletionRequest, CompletionRequest, ModelDType, Runner, Which

    kept = {"f32": ModelDType.F32, "bf16": ModelDType.BF16}
    runner = Runner(
        which=Which.Plain(model_id=str(directory), dtype=kept.get(dtype, ModelDType.F32)),
        in_situ_quant=None if dtype in kept else dtype,
        max_seqs=BATCH,
        prefix_cache_n=0,
        chat_template=str(pathlib.Path(directory) / "chat_template.jinja"),
    )
    random.seed(0)

    def words(count):
        return " ".join(str(random.randrange(10, 9999)) for _ in range(count))

    def complete(prompt, count):
        request = CompletionRequest(
            prompt=words(prompt), model="default", max_tokens=count, temperature=0.0, ignore_eos=True
        )
        return runner.send_completion_request(request).usage

    usage = complete(PREFILL, 1)
    usage = complete(PREFILL, 1)
    assert usage.prompt_tokens == PREFILL, usage.prompt_tokens
    yield "pp512", usage.avg_prompt_tok_per_sec
    complete(4, STEPS)
    yield "tg48", complete(4, STEPS).avg_compl_tok_per_sec

    def streams():
        queued = [
            runner.send_chat_completion_request(
                ChatCompletionRequest(
                    messages=[{"role": "user", "content": words(4)}],
                    model="default",
                    max_tokens=STEPS,
                    temperature=0.0,
                    stream=True,
                )
            )
            for _ in range(BATCH)
        ]
        return sum(sum(1 for _ in stream) for stream in queued)

    # mistral.rs 0.9.5 panics here with quantised matrices, which take one sequence only.
    if dtype in kept:
        streams()
        start = time.perf_counter()
        tokens = streams()
        yield "tg48x8", tokens / (time.perf_counter() - start)


def weights(directory, out):
    """Writes random weights in bf16, and a tokenizer that splits at blanks."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(directory)
    torch.set_default_dtype(torch.bfloat16)
    AutoModelForCausalLM.from_config(config).save_pretrained(out)
    vocab = {str(number): number for number in range(config.vocab_size)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False},
        "normalizer": None,
        "post_processor": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0"},
    }
    out = pathlib.Path(out)
    # mistral.rs looks for `rope_theta` where older versions of transformers wrote it.
    saved = json.loads((out / "config.json").read_text())
    saved.setdefault("rope_theta", saved.get("rope_parameters", {}).get("rope_theta", 10_000.0))
    (out / "config.json").write_text(json.dumps(saved))
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    (out / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": "2", "bos_token": "1"}))


if sys.argv[1] == "weights":
    weights(*sys.argv[2:])
else:
    work = {"transformers": transformers, "mistralrs": mistralrs}[sys.argv[1]]
    for name, value in work(*sys.argv[2:]):
        print(f"{name} {value:.1f}", flush=True)
    print(f"MiB {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")
