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

import random_gguf
from random_gguf import BASE_TOKENS, Type

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
KIND = Type[arguments.type.upper()]
CONFIG = random_gguf.read_config(arguments.model)
HIDDEN, VOCAB = CONFIG["hidden_size"], CONFIG["vocab_size"]


def write_model(path):
    def embedding(random):
        return random.standard_normal((VOCAB, HIDDEN), dtype=numpy.float32) / numpy.float32(HIDDEN**0.5)

    words = [f"<{index}>" for index in range(BASE_TOKENS, VOCAB)]
    random_gguf.write_model(path, CONFIG, KIND, words, embedding)


def write_adapter(path, seed):
    random = numpy.random.default_rng(1000 + seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(arguments.rank))
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, rows, columns in random_gguf.projections(CONFIG):
            for factor, shape in (("a", (arguments.rank, columns)), ("b", (rows, arguments.rank))):
                values = random.standard_normal(shape, dtype=numpy.float32) * 0.3 / shape[1] ** 0.5
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{factor}", values)
    random_gguf.finish(writer)


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
    return [int(token) for token in random.integers(BASE_TOKENS, VOCAB, PROMPT)]


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
