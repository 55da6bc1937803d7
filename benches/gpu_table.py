#!/usr/bin/env python3
"""Tables of what benches/gpu.sh has measured; nothing but the standard library.

  gpu_table.py doctor FILE
  gpu_table.py table OUT DEVICE MODEL_DIR CONTEXT DECODE
"""
import glob
import json
import os
import sys


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def doctor(path):
    for device in read(path)["devices"]:
        kernels, goldens = device["kernels"], device["goldens"]
        cases = sum(kernel["cases"] for kernel in kernels)
        print(f"{device['device']} ({device['name']}), {device['language']}: {cases} cases of {len(kernels)} "
              f"kernels and types right; {sum(golden['right'] for golden in goldens)} of {len(goldens)} goldens right")
        for kernel in kernels:
            print(f"  {kernel['kernel']:<15} {kernel['dtype']:<5} largest error {kernel['largest_error']:.1e}")
        for speed in device["speeds"]:
            took = speed["seconds"]
            print(f"  {speed['kernel']:<15} {speed['case']:<44} " + ("not timed" if took is None else
                  f"{took * 1e6:10.1f} us {speed['gb_per_s']:9.1f} GB/s {speed['gflop_per_s'] / 1e3:8.2f} TFLOP/s"))


def per_token(config, size):
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * heads * width * size


def share(part, whole):
    return "not known" if not whole else f"{100 * part / whole:.1f} %"


def idle_share(path):
    """Of the time in which there was work: 1 - forward / (scheduler + execute), by the histograms."""
    sums = {}
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.rpartition(" ")
                if name.startswith("llm_engine_step_") and "_time_seconds_sum" in name:
                    sums[name.split("llm_engine_step_")[1].split("_time")[0]] = float(value)
        return 1 - sums["forward"] / (sums["scheduler"] + sums["execute"])
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return None


def table(out, main, model, context, decode):
    config = read(os.path.join(model, "config.json"))
    peer = read(os.path.join(out, "peer.json")) or {}
    speeds = read(os.path.join(out, f"doctor-{main}.json"))["devices"][0]["speeds"]
    copies = [speed["gb_per_s"] * 1e9 for speed in speeds if speed["kernel"] == "embed" and speed["seconds"]]
    products = [speed["gflop_per_s"] * 1e9 for speed in speeds if speed["kernel"] == "linear" and speed["seconds"]]
    # The better of what torch and our own kernels reach: a limit that we set ourselves is none.
    bandwidth = max(copies + [peer.get("copy_bytes_per_s", 0)])
    rate = max(products + [peer.get("bf16_flops_per_s", 0)])
    print(f"Copies: {bandwidth / 1e9:.0f} GB/s; products: {rate / 1e12:.2f} TFLOP/s, "
          + (f"with torch {peer['torch']}, transformers {peer['transformers']}" if peer else "without torch"))
    print("\n| work | device | tokens/s | of the limit | transformers | Hearth / transformers |\n|---|---|---|---|---|---|")
    for path in sorted(glob.glob(os.path.join(out, "decode-*.json"))):
        measured = read(path)
        if measured is None:
            continue
        device, size = os.path.basename(path)[7:-5], 4 if measured["model"]["dtype"] == "f32" else 2
        for row in measured["results"]:
            kv = row["batch"] * (context + decode / 2) * per_token(config, size)
            floor = (measured["model"]["weight_bytes"] + kv) / bandwidth if bandwidth else 0
            got = row["decode_tokens_per_s"]
            theirs = peer.get("decode_tokens_per_s", {}).get(str(row["batch"]))
            theirs = theirs if isinstance(theirs, float) else None
            print(f"| decode, batch {row['batch']}, context {context} to {context + decode} | {device} | {got:.1f} | "
                  f"{share(got * floor / row['batch'], 1 if floor else 0)} of bandwidth | "
                  + (f"{theirs:.1f} | {got / theirs:.2f} |" if theirs else "not run | |"))
    for path in sorted(glob.glob(os.path.join(out, "prefill-*.json"))):
        measured = read(path)
        if measured is None:
            continue
        row = measured["results"][0]
        got, length = row["prefill_tokens_per_s"], row["prompt_tokens"]
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = config.get("head_dim") or hidden // heads
        # Products, without the output projection of tokens that want no logits, and attention.
        embedding = config["vocab_size"] * hidden
        tied = config.get("tie_word_embeddings", False)
        layers = measured["model"]["parameters"] - embedding * (1 if tied else 2)
        flops = 2 * layers + 2 * length * config["num_hidden_layers"] * heads * width
        theirs = peer.get("prefill_tokens_per_s")
        print(f"| prefill, {row['batch']} x {length} | {os.path.basename(path)[8:-5]} | {got:.1f} | "
              f"{share(got * flops, rate)} of the matrix rate | "
              + (f"{theirs:.1f} | {got / theirs:.2f} |" if theirs else "not run | |"))
    print("\n| HTTP | figures |\n|---|---|")
    for path in sorted(glob.glob(os.path.join(out, "http-shared-*.json"))):
        print(f"| {os.path.basename(path)[:-5]} | `{json.dumps(read(path))}` |")
    idle = idle_share(os.path.join(out, "metrics.txt"))
    print(f"| device idle while there was work | {'not known' if idle is None else f'{100 * idle:.1f} %'} |")


if sys.argv[1] == "doctor":
    doctor(sys.argv[2])
else:
    table(*sys.argv[2:5], *map(int, sys.argv[5:7]))
