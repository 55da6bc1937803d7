#!/usr/bin/env python3
"""Compares the greedy texts of Hearth and llama-server on the tiny models of model/goldens/gguf, which llama.cpp's
converter wrote, one for each family.

  LLAMA_SERVER=.../llama-server benches/gguf_families.py [FAMILY ...]

Both programs compute in f32 with keys and values in f32 and continue the same random token ids for 64 tokens. Where two
texts part, the script prints by how much each program prefers its own token. The models have no tokenizer, so that
copies get one. It needs the packages gguf and numpy.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import numpy
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from random_gguf import byte_texts

LENGTH, PROMPTS, PROMPT, VOCABULARY = 64, 24, 24, 96
PORT = 8942
TOP = 10
Value = gguf.GGUFValueType
GOLDENS = Path(__file__).parent.parent / "model/goldens/gguf"
# Keys of what llama.cpp computes otherwise than transformers: Phi-3 without its window, and GPT-OSS with rounded ends of
# YaRN's ramp. Copies lack them.
OTHERWISE = ["phi3.attention.sliding_window", "gpt-oss.rope.scaling.type", "gpt-oss.rope.scaling.factor"]
FAMILIES = "smollm3 granite olmo2 phi3 gemma2 gemma3 mixtral qwen2moe qwen3moe gpt-oss".split()


def post(path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def with_tokenizer(family, path):
    """Writes a copy of a golden model to `path` with tokens that are bytes. The last one ends a text."""
    reader = gguf.GGUFReader(GOLDENS / f"{family}.gguf")
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(path, architecture)
    kinds = [1] * (VOCABULARY - 1) + [3]
    tokens = [*byte_texts()[: VOCABULARY - 2], "\u0120\u0120", "<end>"]
    new = {
        "tokenizer.ggml.model": MetadataDetails(Value.STRING, "gpt2"),
        "tokenizer.ggml.pre": MetadataDetails(Value.STRING, "gpt-2"),
        "tokenizer.ggml.tokens": MetadataDetails(Value.ARRAY, tokens),
        "tokenizer.ggml.token_type": MetadataDetails(Value.ARRAY, kinds),
        "tokenizer.ggml.merges": MetadataDetails(Value.ARRAY, ["\u0120 \u0120"]),
        "tokenizer.ggml.bos_token_id": MetadataDetails(Value.UINT32, VOCABULARY - 1),
        "tokenizer.ggml.eos_token_id": MetadataDetails(Value.UINT32, VOCABULARY - 1),
        "tokenizer.ggml.add_bos_token": MetadataDetails(Value.BOOL, False),
    }
    copy_with_new_metadata(reader, writer, new, ["tokenizer.ggml.model", f"{architecture}.vocab_size", *OTHERWISE])


def served(command, ready, ask, prompts):
    """Starts a server, and returns its answers to the prompts."""
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{PORT}{ready}")
                    break
                except OSError:
                    time.sleep(0.1)
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"{command} ended:\n{log.read().decode()[-2000:]}")
            return [ask(prompt) for prompt in prompts]
        finally:
            server.terminate()
            server.wait()


def ask_llama(prompt):
    """Returns each token with the log-probabilities of the most likely tokens there."""
    body = {"prompt": prompt, "n_predict": LENGTH, "temperature": 0, "n_probs": TOP, "cache_prompt": False}
    answer = post("/completion", body)["completion_probabilities"]
    return [(token["id"], {top["id"]: top["logprob"] for top in token["top_logprobs"]}) for token in answer]


def ask_hearth(prompt):
    sampling = {"max_new_tokens": LENGTH, "temperature": 0}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": TOP}
    answer = post("/generate", body)["meta_info"]
    top = [{token: logprob for logprob, token, _ in at} for at in answer["output_top_logprobs"]]
    return [(token, top) for (_, token, _), top in zip(answer["output_token_logprobs"], top)]


def cut(tokens):
    """The tokens before the one that ends a text."""
    ids = [token for token, _ in tokens]
    return tokens[: ids.index(VOCABULARY - 1)] if VOCABULARY - 1 in ids else tokens


def compare(family, folder):
    path = os.path.join(folder, f"{family}.gguf")
    with_tokenizer(family, path)
    random = numpy.random.default_rng(7)
    prompts = [random.integers(0, VOCABULARY - 2, PROMPT).tolist() for _ in range(PROMPTS)]
    llama = [os.environ["LLAMA_SERVER"], "-m", path, "-c", "128", "-np", "1", "-fa", "off", "-t", "1"]
    llama += ["-ctk", "f32", "-ctv", "f32", "--port", str(PORT), "--no-webui"]
    hearth = [os.environ.get("HEARTH_BIN", "target/release/hearth"), "serve", "--model", path, "--device", "cpu"]
    hearth += ["--dtype", "f32", "--port", str(PORT)]
    theirs = served(llama, "/health", ask_llama, prompts)
    ours = served(hearth, "/ready", ask_hearth, prompts)
    same = long = 0
    for number, (our, their) in enumerate(zip(map(cut, ours), map(cut, theirs))):
        a, b = [token for token, _ in our], [token for token, _ in their]
        if a == b:
            same += 1
            long += len(a) == LENGTH
            continue
        at = next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))
        if at == min(len(a), len(b)):
            print(f"{family}: text {number} ends at {len(a)}, llama.cpp's at {len(b)}")
            continue
        margins = [tokens[at][1].get(a[at], -99) - tokens[at][1].get(b[at], -99) for tokens in (our, their)]
        print(f"{family}: text {number} parts at {at}: Hearth {margins[0]:+.5f}, llama.cpp {margins[1]:+.5f}")
    print(f"{family}: {same} of {PROMPTS} texts the same, {long} of them with {LENGTH} tokens")


with tempfile.TemporaryDirectory() as directory:
    for name in sys.argv[1:] or FAMILIES:
        compare(name, directory)
