"""Times compiling and masks of xgrammar and outlines-core on the sample that Hearth's example `compare`
(grammar/examples/compare.rs) writes, which times Hearth and llguidance on it.

    pip install xgrammar outlines-core numpy pydantic apache-tvm-ffi typing_extensions
    python benches/peers/grammars.py cl100k_base.tiktoken sample.json [every] [seconds]

It takes every tenth schema (or each `every`-th), each in a process of its own with `seconds` to compile, and
walks the same tokens. The time of a mask of outlines-core is the time to write its bits. PyTorch is not
needed, because xgrammar fills an array of numpy.
"""

import base64
import json
import multiprocessing
import sys
import time
import types

import numpy as np


def vocabulary(path):
    tokens = {}
    for line in open(path):
        text, rank = line.split()
        tokens[int(rank)] = base64.b64decode(text)
    return [tokens.get(i, b"") for i in range(max(tokens) + 1)]


def xgrammar(words):
    import tvm_ffi  # noqa: F401, must come before the stand-in below

    for name in ["torch", "transformers"]:
        stand_in = types.ModuleType(name)
        stand_in.__getattr__ = lambda _: object
        sys.modules[name] = stand_in
    torch = sys.modules["torch"]
    torch.int32, torch.tensor, torch.full = np.int32, lambda v, dtype: np.array(v, dtype), np.full
    import xgrammar as xgr

    end = len(words)
    info = xgr.TokenizerInfo(words + [b"<|end|>"], vocab_type=xgr.VocabType.RAW, stop_token_ids=[end])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bits = np.full((1, (end + 32) // 32), -1, dtype=np.int32)

    def compiled(schema):
        grammar = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, strict_mode=False)
        matcher = xgr.GrammarMatcher(grammar)
        matcher.fill_next_token_bitmask(bits)
        return grammar

    def walk(grammar, tokens):
        matcher = xgr.GrammarMatcher(grammar)
        for token in tokens:
            began = time.perf_counter()
            matcher.fill_next_token_bitmask(bits)
            yield time.perf_counter() - began
            if not matcher.accept_token(token):
                return

    return compiled, walk


def outlines(words):
    import outlines_core as oc
    from outlines_core.json_schema import build_regex_from_schema

    end = len(words)
    ids = {}
    for i, word in enumerate(words):
        if word:
            ids.setdefault(word, []).append(i)
    vocab = oc.Vocabulary(end, ids)
    bits = np.zeros((end + 32) // 32, dtype=np.int32)

    def compiled(schema):
        return oc.Index(build_regex_from_schema(json.dumps(schema), whitespace_pattern=" ?"), vocab)

    def walk(index, tokens):
        guide = oc.Guide(index)
        for token in tokens:
            began = time.perf_counter()
            guide.write_mask_into(bits.ctypes.data, bits.size, bits.itemsize)
            yield time.perf_counter() - began
            try:
                guide.advance(token, return_tokens=False)
            except Exception:
                return

    return compiled, walk


def work(engine, entry, pipe):
    compiled, walk = engine
    try:
        began = time.perf_counter()
        grammar = compiled(entry["schema"])
        took = time.perf_counter() - began
        pipe.send(("compiled", took))
        times, missed = [], 0
        for tokens in entry["tokens"]:
            masks = list(walk(grammar, tokens))
            missed += len(masks) < len(tokens)
            times += masks
        pipe.send(("masks", times, missed, len(entry["tokens"])))
    except BaseException as error:
        pipe.send(("refused", str(error)[:100]))


def share(values, at):
    return sorted(values)[int((len(values) - 1) * at)] if values else float("nan")


def main():
    words = vocabulary(sys.argv[1])
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    limit = float(sys.argv[4]) if len(sys.argv) > 4 else 10
    sample = json.load(open(sys.argv[2]))[::every]
    # Processes are forked so that they share the vocabulary.
    fork = multiprocessing.get_context("fork")
    for name, make in [("outlines-core", outlines), ("xgrammar", xgrammar)]:
        engine = make(words)
        compiles, masks, refused, killed, missed, instances = [], [], 0, 0, 0, 0
        for entry in sample:
            here, there = fork.Pipe()
            process = fork.Process(target=work, args=(engine, entry, there))
            process.start()
            there.close()
            try:
                while here.poll(limit):
                    message = here.recv()
                    if message[0] == "compiled":
                        compiles.append(message[1])
                    elif message[0] == "refused":
                        refused += 1
                        break
                    else:
                        masks += message[1]
                        missed += message[2]
                        instances += message[3]
                        break
                else:
                    killed += 1
            except EOFError:
                killed += 1
            process.kill()
            process.join()
        ms = [f"{share(compiles, at) * 1e3:.1f}" for at in (0.5, 0.9, 0.99, 1)]
        us = [f"{share(masks, at) * 1e6:.1f}" for at in (0.5, 0.9, 0.99, 1)]
        print(f"{name}: {len(sample)} schemas, {refused} refused, {killed} not done in {limit} s;"
              f" compile p50/p90/p99/max {'/'.join(ms)} ms; mask ({len(masks)}) {'/'.join(us)} us;"
              f" {missed} of {instances} valid instances left", flush=True)


if __name__ == "__main__":
    main()
