#!/usr/bin/env python3
"""Measures adapters (LoRA) over HTTP: the base model, one adapter, and eight adapters in one batch, in turns.

  benches/adapters.py hearth [--llama-server PATH] [--model DIR] [--type bf16|q8_0|q4_0] [--rank N] [--rounds N]

The model has the shape of DIR/config.json (benches/models/smol-135m), random weights, and a made-up vocabulary; the
adapters change every projection of every layer. All servers read the same GGUF files and run at once; only one of them
computes at a time. 8 and 32 requests are sent together, with different prompts of 16 tokens, and generate 128 tokens
each. The rows are

  base        a server without adapters, which the others are compared with
  loaded      a server with eight adapters, and requests for the base model
  1 adapter   the same server, and requests for one adapter
  8 adapters  the same server, and requests for all eight in turns

With --llama-server the same requests go to llama-server without an adapter and with one (--lora).
The table has output tokens a second, the best of all rounds, and ratios to the base of the same program: of the best
rounds, and the median of the ratios within a round. It needs the packages gguf and numpy.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import gguf
import numpy

here = os.path.dirname(os.path.abspath(__file__))
arguments = argparse.ArgumentParser()
arguments.add_argument("hearth")
arguments.add_argument("--llama-server")
arguments.add_argument("--model", default=os.path.join(here, "models", "smol-135m"))
arguments.add_argument("--type", choices=["bf16", "q8_0", "q4_0"], default="bf16")
arguments.add_argument("--rank", type=int, default=16)
arguments.add_argument("--rounds", type=int, default=5)
arguments.add_argument("--tokens", type=int, default=128)
arguments.add_argument("--batches", type=int, nargs="+", default=[8, 32])
arguments = arguments.parse_args()
ADAPTERS = 8
PROMPT = 16
KIND = {
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}[arguments.type]

with open(os.path.join(arguments.model, "config.json")) as file:
    CONFIG = json.load(file)
HIDDEN, INNER, VOCAB = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
HEADS, KV_HEADS = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
WIDTH = CONFIG.get("head_dim") or HIDDEN // HEADS
PROJECTIONS = [
    ("attn_q", HEADS * WIDTH, HIDDEN),
    ("attn_k", KV_HEADS * WIDTH, HIDDEN),
    ("attn_v", KV_HEADS * WIDTH, HIDDEN),
    ("attn_output", HIDDEN, HEADS * WIDTH),
    ("ffn_gate", INNER, HIDDEN),
    ("ffn_up", INNER, HIDDEN),
    ("ffn_down", HIDDEN, INNER),
]


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_texts():
    """The characters that byte-level vocabularies write bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def write_model(path):
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_dimension_count(WIDTH)
    writer.add_rope_freq_base(10000.0)
    # Bytes, and words that no text has; a merge is required.
    words = [f"<{index}>" for index in range(VOCAB - 258)]
    tokens = [*byte_texts(), *words, "<|end|>", "\u0120\u0120"]
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (VOCAB - 2) + [3, 1])
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(VOCAB - 2)
    writer.add_bos_token_id(VOCAB - 2)
    writer.add_add_bos_token(False)

    def add(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) / columns**0.5
        writer.add_tensor(name, gguf.quants.quantize(values, KIND), raw_dtype=KIND)

    norm = numpy.ones(HIDDEN, dtype=numpy.float32)
    add("token_embd.weight", VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(CONFIG["num_hidden_layers"]):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", norm)
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", norm)
        for name, rows, columns in PROJECTIONS:
            add(f"blk.{layer}.{name}.weight", rows, columns)
    finish(writer)


def write_adapter(path, seed):
    random = numpy.random.default_rng(1000 + seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(arguments.rank))
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, rows, columns in PROJECTIONS:
            for factor, shape in (("a", (arguments.rank, columns)), ("b", (rows, arguments.rank))):
                values = random.standard_normal(shape, dtype=numpy.float32) * 0.3 / shape[1] ** 0.5
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{factor}", values)
    finish(writer)


class Server:
    """A server that runs until the script ends."""

    running = []

    def __init__(self, ready, command):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*command, "--port", str(port)], **quiet)
        Server.running.append(self)
        for _ in range(3000):
            try:
                urllib.request.urlopen(self.url + ready)
                return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(f"{' '.join(command)} ended")
                time.sleep(0.1)
        sys.exit(f"{' '.join(command)} is not ready after five minutes")

    def call(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)


def prompt(attempt, index):
    """Token ids that no other request has, so that no cache helps."""
    random = numpy.random.default_rng([attempt, index])
    return [int(token) for token in random.integers(0, VOCAB - 2, PROMPT)]


def hearth_asks(server, name_of):
    def ask(attempt, index):
        body = {"prompt": prompt(attempt, index), "max_tokens": arguments.tokens, "ignore_eos": True, "temperature": 0}
        name = name_of(index)
        answer = server.call("/v1/completions", body if name is None else {**body, "model": name})
        return answer["usage"]["completion_tokens"]

    return ask


def llama_asks(server):
    def ask(attempt, index):
        body = {
            "prompt": prompt(attempt, index), "n_predict": arguments.tokens, "ignore_eos": True, "temperature": 0,
            "cache_prompt": False,
        }
        return server.call("/completion", body)["tokens_predicted"]

    return ask


def run(ask, attempt, batch):
    """Output tokens a second of `batch` requests that are sent together."""
    counts = [0] * batch

    def work(index):
        counts[index] = ask(attempt, index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(batch)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    assert counts == [arguments.tokens] * batch, counts
    return sum(counts) / seconds


def measure(folder):
    model = os.path.join(folder, "model.gguf")
    write_model(model)
    adapters = [os.path.join(folder, f"adapter-{index}.gguf") for index in range(ADAPTERS)]
    for index, path in enumerate(adapters):
        write_adapter(path, index)
    most = max(arguments.batches)
    room = PROMPT + arguments.tokens + 16
    serve = [
        arguments.hearth, "serve", "--model", model, "--device", "cpu", "--dtype", "bf16", "--kv-tokens", str(2 * most * room),
    ]
    modules = [f"a{index}={path}" for index, path in enumerate(adapters)]
    plain = Server("/ready", serve)
    adapted = Server("/ready", [*serve, "--max-loras", str(ADAPTERS), "--lora-modules", *modules])
    kinds = {
        "Hearth": {
            "base": hearth_asks(plain, lambda index: None),
            "loaded": hearth_asks(adapted, lambda index: None),
            "1 adapter": hearth_asks(adapted, lambda index: "a0"),
            f"{ADAPTERS} adapters": hearth_asks(adapted, lambda index: f"a{index % ADAPTERS}"),
        }
    }
    if arguments.llama_server:
        llama = [
            arguments.llama_server, "-m", model, "-t", str(os.cpu_count()), "-c", str(most * room), "-np", str(most),
        ]
        kinds["llama-server"] = {
            "base": llama_asks(Server("/health", llama)),
            "1 adapter": llama_asks(Server("/health", [*llama, "--lora", adapters[0]])),
        }
    attempt = 0
    for batch in arguments.batches:
        seen = {}
        for round_number in range(arguments.rounds + 1):
            for program, rows in kinds.items():
                for row, ask in rows.items():
                    attempt += 1
                    speed = run(ask, attempt, batch)
                    # The first round warms up.
                    if round_number:
                        line = {"batch": batch, "program": program, "row": row, "tokens_per_second": round(speed, 1)}
                        print(json.dumps(line), file=sys.stderr, flush=True)
                        seen.setdefault((program, row), []).append(speed)
        for (program, row), speeds in seen.items():
            base = seen[program, "base"]
            ratio = max(speeds) / max(base)
            median = statistics.median(speed / other for speed, other in zip(speeds, base))
            beside = ""
            if row in ("base", "1 adapter") and "llama-server" in kinds:
                beside = f"{max(speeds) / max(seen['llama-server', row]):.2f}"
            print(f"| {batch} | {program} | {row} | {max(speeds):.0f} | {ratio:.2f} | {median:.2f} | {beside} |", flush=True)


print("| batch | program | row | output tokens/s | of its base | median of rounds | to llama-server's row |")
print("|---|---|---|---|---|---|---|", flush=True)
with tempfile.TemporaryDirectory() as place:
    try:
        measure(place)
    finally:
        for server in Server.running:
            server.process.terminate()
        for server in Server.running:
            server.process.wait()
