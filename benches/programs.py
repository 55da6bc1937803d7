#!/usr/bin/env python3
"""Measures programs of the front-end language on one model: in the process of the engine, over HTTP, over HTTP
without the prefix cache, and on llama-server through the OpenAI back end, in turns.

  benches/programs.py hearth hearth-programs LLAMA_SERVER [--model DIR] [--rounds N] [--instances N]

The model has the shape of DIR/config.json (benches/models/smol-135m), random weights in blocks of 8 bits, and a
vocabulary in which each byte is a token, so that the best possible hit rate can be computed. It writes letters and
digits only: its other outputs are never the largest. It needs the packages gguf and numpy.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import gguf
import numpy

here = os.path.dirname(os.path.abspath(__file__))
arguments = argparse.ArgumentParser()
arguments.add_argument("hearth")
arguments.add_argument("programs")
arguments.add_argument("llama_server")
arguments.add_argument("--model", default=os.path.join(here, "models", "smol-135m"))
arguments.add_argument("--rounds", type=int, default=1)
arguments.add_argument("--instances", type=int, default=4)
arguments = arguments.parse_args()
KV_TOKENS = 32768
END = 256


def byte_texts():
    """The characters that byte-level vocabularies write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_model(path):
    with open(os.path.join(arguments.model, "config.json")) as file:
        config = json.load(file)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(8192)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(10000.0)
    # A merge is required; its text does not occur.
    tokens = [*byte_texts(), "<|end|>", "\u0120\u0120"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * END + [3, 1])
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(False)

    def add(name, shape, kind=gguf.GGMLQuantizationType.Q8_0, only=None, scale=1.0):
        values = random.standard_normal(shape, dtype=numpy.float32) * scale / shape[-1] ** 0.5
        if only is not None:
            values[[row for row in range(shape[0]) if row not in only]] = 0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    letters = {byte for byte in range(128) if chr(byte).isalnum()}
    add("token_embd.weight", (len(tokens), hidden), scale=hidden**0.5)
    add("output.weight", (len(tokens), hidden), only=letters, scale=8.0)
    norm = numpy.ones(hidden, dtype=numpy.float32)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(config["num_hidden_layers"]):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", norm)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
        for name, shape in [
            ("attn_q", (heads * width, hidden)), ("attn_k", (kv_heads * width, hidden)),
            ("attn_v", (kv_heads * width, hidden)), ("attn_output", (hidden, heads * width)),
            ("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden)), ("ffn_down", (hidden, inner)),
        ]:
            add(f"blk.{layer}.{name}.weight", shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def measure(backend, *rest):
    command = [arguments.programs, "--backend", backend, "--instances", str(arguments.instances), *rest]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def served(backend, ready, command):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(url + ready)
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit(f"{command} ended")
                time.sleep(0.1)
        return measure(backend, "--url", url)
    finally:
        server.terminate()
        server.wait()


with tempfile.TemporaryDirectory() as folder:
    model = os.path.join(folder, "bytes.gguf")
    write_model(model)
    flags = ["--model", model, "--device", "cpu", "--kv-tokens", str(KV_TOKENS)]
    serve = [arguments.hearth, "serve", *flags]
    llama = [
        arguments.llama_server, "-m", model, "-t", str(os.cpu_count()), "-c", str(KV_TOKENS), "-np", "8", "--metrics",
    ]
    kinds = {
        "in-process": lambda: measure("engine", "--", *flags),
        "HTTP": lambda: served("hearth", "/ready", serve),
        "HTTP, no cache": lambda: served("hearth", "/ready", [*serve, "--no-prefix-cache"]),
        "llama-server": lambda: served("llama-server", "/health", llama),
    }
    results = {}
    for round_number in range(arguments.rounds):
        for kind, run in kinds.items():
            for line in run():
                print(json.dumps({"kind": kind, **line}), file=sys.stderr, flush=True)
                results.setdefault(line["program"], {}).setdefault(kind, []).append(line)

print("| program | back end | requests | prompt tokens | computed | hit rate | of the best | seconds | llama-server / this |")
print("|---|---|---|---|---|---|---|---|---|")
for program, by_kind in results.items():
    peer = statistics.median(line["seconds"] for line in by_kind["llama-server"])
    for kind, lines in by_kind.items():
        first, seconds = lines[0], statistics.median(line["seconds"] for line in lines)
        best = first["best_hit_rate"]
        share = f"{100 * first['hit_rate'] / best:.1f} %" if best else ""
        print(f"| {program} | {kind} | {first['requests']} | {first['prompt_tokens']} | {first['computed_tokens']} | "
              f"{100 * first['hit_rate']:.1f} % | {share} | {seconds:.1f} | {peer / seconds:.2f} |")
