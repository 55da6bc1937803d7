#!/usr/bin/env python3
"""Prints tables of the results of benches/gpu.sh. It needs only the standard library.

  gpu_table.py doctor FILE
  gpu_table.py table OUT DEVICE MODEL_DIR CONTEXT DECODE
"""
import glob
import json
import os
import sys

NOT_RUN = "not run"


def read(path):
    """Returns the last line that is JSON; a step that was cut off has printed its figures up to then."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def doctor(path):
    for device in (read(path) or {"devices": []})["devices"]:
        kernels, goldens = device["kernels"], device["goldens"]
        cases = sum(kernel["cases"] for kernel in kernels)
        wrong = sum(kernel["wrong"] is not None for kernel in kernels)
        print(f"{device['device']} ({device['name']}), {device['language']}: {cases} cases of {len(kernels)} "
              f"kernels and types, {wrong} WRONG; {sum(golden['right'] for golden in goldens)} of {len(goldens)} "
              "goldens right")
        for chunks in device.get("prompt_attention", []):
            matrices = chunks["matrices"]
            print(f"  prompt attention {chunks['dtype']:<4} " + ("without cooperative matrices" if matrices is None else
                  f"in cooperative matrices of {' x '.join(map(str, matrices))}"))
        for kernel in kernels:
            print(f"  {kernel['kernel']:<15} {kernel['dtype']:<5} " + (kernel["wrong"] or
                  f"{kernel['cases']:>5} cases, largest error {kernel['largest_error']:.1e}"))
        for speed in device["speeds"]:
            took = speed["seconds"]
            print(f"  {speed['kernel']:<15} {speed['case']:<44} " + ("not timed" if took is None else
                  f"{took * 1e6:10.1f} us {speed['gb_per_s']:9.1f} GB/s {speed['gflop_per_s'] / 1e3:8.2f} TFLOP/s"))
        for golden in goldens:
            if not golden["right"]:
                print(f"  WRONG: {json.dumps(golden)}")


def per_token(config, size):
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * heads * width * size


def percent(part):
    return "not known" if part is None else f"{100 * part:.1f} %"


class Run:
    """The results in one folder."""

    def __init__(self, out, main, model, context, decode):
        self.out, self.main, self.context, self.decode = out, main, context, decode
        self.config = read_whole(os.path.join(model, "config.json"))
        self.peer = self.json("peer") or {}
        speeds = ((self.json(f"doctor-{main}") or {}).get("devices") or [{}])[0].get("speeds", [])
        best = lambda kernel, figure: [speed[figure] * 1e9 for speed in speeds if speed["kernel"] == kernel and speed["seconds"]]
        # The limit is the better of torch's rate and that of Hearth's kernels, so that it is not Hearth's own rate
        # if torch is faster.
        self.bandwidth = max(best("embed", "gb_per_s") + [self.peer.get("copy_bytes_per_s", 0)])
        self.rate = max(best("linear", "gflop_per_s") + [self.peer.get("bf16_flops_per_s", 0)])
        self.notes = {}
        try:
            with open(os.path.join(out, "steps.txt")) as file:
                self.notes = {line[:30].strip(): line[30:].strip() for line in file}
        except OSError:
            pass

    def json(self, name):
        return read(os.path.join(self.out, f"{name}.json"))

    def why(self, name):
        return self.notes.get(name, NOT_RUN)

    def decoded(self, name):
        """Returns tokens a second, and the share of the time that moving the bytes takes at the bandwidth."""
        measured = self.json(name)
        if not measured:
            return None
        row, size = measured["results"][0], 4 if measured["model"]["dtype"] == "f32" else 2
        kv = row["batch"] * (self.context + self.decode / 2) * per_token(self.config, size)
        got = row["decode_tokens_per_s"]
        floor = (measured["model"]["weight_bytes"] + kv) / self.bandwidth if self.bandwidth else None
        return got, floor and got * floor / row["batch"], row["batch"]

    def prefilled(self, name):
        """Returns tokens a second, and the share of the matrix rate that products and attention reach."""
        measured = self.json(name)
        if not measured:
            return None
        row, config = measured["results"][0], self.config
        got, length = row["prefill_tokens_per_s"], row["prompt_tokens"]
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        width = config.get("head_dim") or hidden // heads
        # Products (without the output projection of tokens whose logits are not needed) and attention.
        embedding = config["vocab_size"] * hidden
        layers = measured["model"]["parameters"] - embedding * (1 if config.get("tie_word_embeddings") else 2)
        flops = 2 * layers + 2 * length * config["num_hidden_layers"] * heads * width
        return got, got * flops / self.rate if self.rate else None, row["batch"], length

    def llama(self):
        """Returns llama.cpp's tokens a second of prefill, of decoding one sequence, and of decoding many."""
        figures = {}
        try:
            with open(os.path.join(self.out, "llama.json")) as file:
                text = file.read()
        except OSError:
            return figures
        decoder, at = json.JSONDecoder(), 0
        while at < len(text):
            try:
                found, at = decoder.raw_decode(text, at)
            except ValueError:
                at += 1
                continue
            for row in found if isinstance(found, list) else [found]:
                if not isinstance(row, dict):
                    continue
                if row.get("n_gen"):
                    figures["decode-1"] = row["avg_ts"]
                elif row.get("n_prompt"):
                    figures["prefill"] = row["avg_ts"]
                elif row.get("speed_tg"):
                    figures[f"decode-{row['pl']}"] = row["speed_tg"]
        return figures


def read_whole(path):
    with open(path) as file:
        return json.load(file)


def beside(ours, theirs):
    return f"{theirs:.1f}, {ours / theirs:.2f}x" if isinstance(theirs, (int, float)) else NOT_RUN


def table(*arguments):
    run = Run(*arguments)
    out, main, context = run.out, run.main, run.context
    print(f"Copies: {run.bandwidth / 1e9:.0f} GB/s; products: {run.rate / 1e12:.2f} TFLOP/s, "
          + (f"with torch {run.peer['torch']}, transformers {run.peer['transformers']}" if run.peer else "without torch"))
    llama = run.llama()
    print("\n| work | on | tokens/s | of the limit | transformers, Hearth / it | llama.cpp, Hearth / it |\n|---|---|---|---|---|---|")
    names = sorted(note for note in run.notes if note.startswith(("decode-", "prefill-")))
    for name in names:
        kind, _, rest = name.partition("-")
        if kind == "decode":
            batch, _, on = rest.partition("-")
            work, figures = f"decode, batch {batch}, context {context} to {context + run.decode}", run.decoded(name)
            theirs = run.peer.get("decode_tokens_per_s", {}).get(batch), llama.get(f"decode-{batch}")
            limit = "bandwidth"
        else:
            on, figures = rest, run.prefilled(name)
            work = f"prefill, {figures[2]} x {figures[3]}" if figures else "prefill"
            theirs, limit = (run.peer.get("prefill_tokens_per_s"), llama.get("prefill")), "the matrix rate"
        if figures is None:
            print(f"| {work} | {on} | {run.why(name)} | | | |")
            continue
        got, part = figures[:2]
        # The peers compute in bf16, so that only rows in that format are compared with them.
        ratios = [beside(got, value) if on == main else "" for value in theirs]
        print(f"| {work} | {on} | {got:.1f} | {percent(part)} of {limit} | {ratios[0]} | {ratios[1]} |")
    print("\n| of the same call | ratio |\n|---|---|")
    base = run.decoded(f"decode-1-{main}")
    for format in ("int4", "int8"):
        mine = run.decoded(f"decode-1-{main}-{format}")
        ratio = f"{mine[0] / base[0]:.2f}" if mine and base else run.why(f"decode-1-{main}-{format}")
        print(f"| {format} / not rounded, batch 1 | {ratio} |")
    others = {name.rpartition("-")[2] for name in names if not name.endswith(("-int4", "-int8", "-deterministic", "-tuned"))} - {main}
    for other in sorted(others) + [f"{main}-deterministic", f"{main}-tuned"]:
        for name in sorted({name.removesuffix(f"-{main}") for name in names if name.endswith(f"-{main}")}):
            read_one = run.decoded if name.startswith("decode") else run.prefilled
            mine, mains = read_one(f"{name}-{other}"), read_one(f"{name}-{main}")
            ratio = f"{mine[0] / mains[0]:.2f}" if mine and mains else run.why(f"{name}-{other}")
            print(f"| {other} / {main}, {name} | {ratio} |")
    print("\n| HTTP | figures |\n|---|---|")
    http = run.json("http") or {}
    for name, figures in http.items():
        if isinstance(figures, dict) and "output_tokens_per_s" in figures:
            times = ", ".join(f"{time} p50 {figures[f'{time}_ms']['p50']:.1f} p99 {figures[f'{time}_ms']['p99']:.1f} ms"
                              for time in ("ttft", "tpot", "itl"))
            print(f"| {figures['concurrency']} clients, {figures['requests']} requests, {name} tokens of the prompt | "
                  f"{figures['output_tokens_per_s']:.1f} output tokens/s, {figures['failed']} failed, {times}; device idle "
                  f"{percent(figures['idle_share'])} |")
        else:
            print(f"| {name} | {figures if isinstance(figures, dict) else f'{figures:.2f}'} |")
    if not http:
        print(f"| | {run.why('http')} |")
    more = [device for path in sorted(glob.glob(os.path.join(out, "more-*.json"))) for device in (read(path) or {"devices": []})["devices"]]
    for name in sorted({device["device"] for device in more}):
        rounds = [device for device in more if device["device"] == name]
        cases = sum(kernel["cases"] for device in rounds for kernel in device["kernels"])
        wrong = sum(kernel["wrong"] is not None for device in rounds for kernel in device["kernels"])
        print(f"\nMore cases on {name}: {cases}, {wrong} kernels WRONG.")
    print("\nSteps:\n")
    for name, note in run.notes.items():
        print(f"    {name:<30} {note}")


if __name__ == "__main__":
    if sys.argv[1] == "doctor":
        doctor(sys.argv[2])
    else:
        table(*sys.argv[2:5], *map(int, sys.argv[5:7]))
