#!/usr/bin/env python3
"""Measures speculation of text that is copied from the prompt: Hearth with and without it, and llama-server with its
own lookup and without it, in turns.

  benches/speculation_copies.py hearth LLAMA_SERVER|none [--model DIR] [--types BF16,Q8_0,Q4_0] [--kinds quote,edit]
                                [--clients N] [--rounds N] [--prompt TOKENS]

The model has the shape of DIR/config.json (benches/models/smol-135m) and random weights, but its output projection
makes each token follow one other: they form a book, which the model writes on from any place. So a prompt decides how
much of the answer it holds:

quote       a passage of the book, which the answer repeats
edit        the passage with one token in 12 changed, which the answer mends
record      8 of each 14 tokens of the answer, like the values of a record that is written as JSON
half        the first half of the answer
misleading  each pair of the answer's tokens, followed by others
story       nothing of the answer

Two servers of one program differ by several percent, because their weights lie elsewhere in memory. So the server with
speculation is also asked with "speculative": false, and the ratio to that is the cost of speculation alone.

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
arguments.add_argument("--prompt", type=int, default=512, help="tokens of a prompt; all kinds but story take at least 232")
arguments = arguments.parse_args()
FIRST = 300
TOKENS, PROMPT = 128, arguments.prompt
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


def answer(url, ids, fields, times):
    body = {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, **fields}
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


def rate(url, fields, prompts):
    times = []
    threads = [threading.Thread(target=answer, args=(url, ids, fields, times)) for ids in prompts]
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
    hearth_on = start([*hearth, "--speculative-algorithm", "NGRAM"], "/ready")
    # The name of each way, its server, and the fields that a request has besides the usual ones.
    ways = {
        "Hearth off": (*start(hearth, "/ready"), {}),
        # The salt keeps this answer out of the cache that drafts of the other one come from.
        "Hearth not asked": (*hearth_on, {"speculative": False, "cache_salt": "not asked"}),
        "Hearth on": (*hearth_on, {}),
    }
    if arguments.llama_server != "none":
        ways["llama-server off"] = (*start(llama, "/health"), {})
        ways["llama-server on"] = (*start([*llama, *lookup], "/health"), {})
    random = numpy.random.default_rng(2)
    try:
        for kind in arguments.kinds.split(","):
            rates = {name: [] for name in ways}
            for attempt in range(arguments.rounds + 1):
                prompts = [prompt(kind, random) for _ in range(arguments.clients)]
                texts = {}
                # Every second round goes backwards, so that no way always follows the same one.
                for name, (_, url, fields) in list(ways.items())[:: 1 if attempt % 2 else -1]:
                    found, texts[name] = rate(url, fields, prompts)
                    if attempt:
                        rates[name].append(found)
                for name in ("Hearth not asked", "Hearth on"):
                    assert texts["Hearth off"] == texts[name], f"{kind}: speculation changed an answer"
            cells = [kind_of_weights, kind, str(arguments.clients)]
            cells += [f"{statistics.median(rates[name]):.1f}" if name in rates else "" for name in WAYS]
            cells += [ratio(rates, *pair) for pair in RATIOS]
            print("| " + " | ".join(cells) + " |", flush=True)
    finally:
        for process, _, _ in ways.values():
            process.kill()
            process.wait()


def ratio(rates, above, below):
    """The ratio of the medians, and in brackets that of the best rounds."""
    if above not in rates:
        return ""
    of = lambda figure: figure(rates[above]) / figure(rates[below])
    return f"{of(statistics.median):.2f} ({of(max):.2f})"


WAYS = ["Hearth off", "Hearth not asked", "Hearth on", "llama-server off", "llama-server on"]
RATIOS = [("Hearth on", "Hearth not asked"), ("Hearth on", "Hearth off"), ("llama-server on", "llama-server off")]
columns = ["weights", "text", "clients", *(f"{way}, tok/s" for way in WAYS), *(" / ".join(pair) for pair in RATIOS)]
print("| " + " | ".join(columns) + " |")
print("|---" * len(columns) + "|", flush=True)
for given in arguments.types.split(","):
    with tempfile.TemporaryDirectory() as folder:
        measure(given, folder)
