#!/usr/bin/env python3
"""Measures speculation of text that is copied from the prompt: Hearth with and without it, and llama-server with its
own lookup and without it, in turns.

  benches/speculation_copies.py hearth LLAMA_SERVER [--model DIR] [--types BF16,Q8_0,Q4_0] [--kinds quote,edit]
                                [--clients N] [--rounds N]

The model has the shape of DIR/config.json (benches/models/smol-135m) and random weights, but its output projection
makes each token follow one other: they form a book, which the model writes on from any place. So a prompt decides how
much of the answer it holds:

quote       a passage of the book, which the answer repeats
edit        the passage with one token in 12 changed, which the answer mends
record      8 of each 14 tokens of the answer, like the values of a record that is written as JSON
half        the first half of the answer
misleading  each pair of the answer's tokens, followed by others
story       nothing of the answer

The rate is that of decoding: tokens after the first over the time after the first (of the slowest client). It needs
the packages gguf, numpy and requests.
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

import numpy
import requests

import random_gguf

here = os.path.dirname(os.path.abspath(__file__))
arguments = argparse.ArgumentParser()
arguments.add_argument("hearth")
arguments.add_argument("llama_server")
arguments.add_argument("--model", default=os.path.join(here, "models", "smol-135m"))
arguments.add_argument("--types", default="BF16,Q8_0,Q4_0")
arguments.add_argument("--kinds", default="quote,edit,record,half,misleading,story")
arguments.add_argument("--clients", type=int, default=1)
arguments.add_argument("--rounds", type=int, default=3)
arguments = arguments.parse_args()
FIRST = 300
TOKENS, PROMPT = 128, 512
CONFIG = random_gguf.read_config(arguments.model)
VOCABULARY = CONFIG["vocab_size"]
# The token that follows each one: a cycle through all from FIRST on, in random order.
order = numpy.random.default_rng(1).permutation(numpy.arange(FIRST, VOCABULARY))
FOLLOWS = numpy.zeros(VOCABULARY, dtype=numpy.int64)
FOLLOWS[order] = numpy.roll(order, -1)


def write_model(path, kind):
    hidden = CONFIG["hidden_size"]
    kept = {}

    def embedding(random):
        kept["rows"] = random.standard_normal((VOCABULARY, hidden), dtype=numpy.float32)
        return kept["rows"]

    def output(_):
        values = numpy.zeros((VOCABULARY, hidden), dtype=numpy.float32)
        values[FOLLOWS[order]] = kept["rows"][order] * numpy.float32(20 / hidden)
        return values

    names = [f"t{token}" for token in range(258, VOCABULARY)]
    random_gguf.write_model(path, CONFIG, kind, names, embedding, output, layers=0.05)


def prompt(kind, random):
    """Token ids of a prompt, of the same length for each kind."""
    place = random.integers(len(order))
    book = [int(token) for token in numpy.roll(order, -place)[: TOKENS + 64]]
    noise = lambda count: [int(token) for token in random.integers(FIRST, VOCABULARY, count)]
    if kind == "quote":
        passage = book
    elif kind == "edit":
        passage = [noise(1)[0] if at % 12 == 11 else token for at, token in enumerate(book)]
    elif kind == "record":
        passage = [token if at % 14 < 8 else noise(1)[0] for at, token in enumerate(book)]
    elif kind == "half":
        passage = book[: TOKENS // 2]
    elif kind == "misleading":
        passage = [token for at in range(0, TOKENS, 2) for token in [*book[at : at + 2], *noise(2)]]
    else:
        passage = []
    ids = [*noise(32), *passage]
    ids += noise(PROMPT - 2 - len(ids))
    return [*ids, *book[:2]]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(command, ready):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            if requests.get(url + ready, timeout=5).ok:
                return process, url
        except requests.ConnectionError:
            pass
        time.sleep(0.1)
    sys.exit(f"{command} ended")


def answer(url, ids, times):
    body = {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    with requests.post(url + "/v1/completions", json=body, stream=True, timeout=600) as response:
        response.raise_for_status()
        # An error in a stream would otherwise look like a fast answer.
        text, seen = "", []
        for line in response.iter_lines():
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0]["text"]:
                    seen.append(time.monotonic())
                    text += choices[0]["text"]
    assert text.count("t") == TOKENS, f"{text.count('t')} of {TOKENS} tokens"
    times.append((seen[0], seen[-1], text))


def rate(url, prompts):
    times = []
    threads = [threading.Thread(target=answer, args=(url, ids, times)) for ids in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == len(prompts), "a request failed"
    first, last = min(seen[0] for seen in times), max(seen[1] for seen in times)
    return len(prompts) * (TOKENS - 1) / (last - first), sorted(seen[2] for seen in times)


def measure(kind_of_weights, folder):
    model = os.path.join(folder, f"{kind_of_weights}.gguf")
    write_model(model, random_gguf.Type[kind_of_weights])
    kv = str(max(8192, (PROMPT + TOKENS + 16) * arguments.clients))
    hearth = [arguments.hearth, "serve", "--model", model, "--device", "cpu", "--kv-tokens", kv]
    llama = [arguments.llama_server, "-m", model, "-t", str(os.cpu_count()), "-c", kv, "-np", str(arguments.clients)]
    lookup = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "8"]
    servers = {
        "Hearth off": start(hearth, "/ready"),
        "Hearth on": start([*hearth, "--speculative-algorithm", "NGRAM"], "/ready"),
        "llama-server off": start(llama, "/health"),
        "llama-server on": start([*llama, *lookup], "/health"),
    }
    random = numpy.random.default_rng(2)
    try:
        for kind in arguments.kinds.split(","):
            rates = {name: [] for name in servers}
            for attempt in range(arguments.rounds + 1):
                prompts = [prompt(kind, random) for _ in range(arguments.clients)]
                texts = {}
                for name, (_, url) in servers.items():
                    found, texts[name] = rate(url, prompts)
                    if attempt:
                        rates[name].append(found)
                assert texts["Hearth off"] == texts["Hearth on"], f"{kind}: speculation changed an answer"
            best = {name: max(found) for name, found in rates.items()}
            middle = {name: statistics.median(found) for name, found in rates.items()}
            print(
                f"| {kind_of_weights} | {kind} | {arguments.clients} | "
                + " | ".join(f"{middle[name]:.1f}" for name in servers)
                + f" | {middle['Hearth on'] / middle['Hearth off']:.2f} ({best['Hearth on'] / best['Hearth off']:.2f})"
                + f" | {middle['llama-server on'] / middle['llama-server off']:.2f}"
                + f" ({best['llama-server on'] / best['llama-server off']:.2f}) |",
                flush=True,
            )
    finally:
        for process, _ in servers.values():
            process.kill()
            process.wait()


print("| weights | text | clients | Hearth off, tok/s | Hearth on | llama-server off | on | Hearth on / off: median (best) |"
      " llama-server on / off |")
print("|---|---|---|---|---|---|---|---|---|", flush=True)
for given in arguments.types.split(","):
    with tempfile.TemporaryDirectory() as folder:
        measure(given, folder)
