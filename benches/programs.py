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

import numpy

import random_gguf

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


def write_model(path):
    config = random_gguf.read_config(arguments.model)
    hidden, tokens = config["hidden_size"], random_gguf.BASE_TOKENS
    letters = [byte for byte in range(128) if chr(byte).isalnum()]

    def embedding(random):
        return random.standard_normal((tokens, hidden), dtype=numpy.float32)

    def output(random):
        values = numpy.zeros((tokens, hidden), dtype=numpy.float32)
        values[letters] = random.standard_normal((len(letters), hidden), dtype=numpy.float32) * (8 / hidden**0.5)
        return values

    random_gguf.write_model(path, config, random_gguf.Type.Q8_0, [], embedding, output)


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
