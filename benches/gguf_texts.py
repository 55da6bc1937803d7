#!/usr/bin/env python3
"""Compares the greedy texts of Hearth and llama-server on one GGUF file, and determines which of the two is
nearer to the exact answer, which is that of transformers in f64 on the same weights.

  LLAMA_SERVER=.../llama-server benches/gguf_texts.py FILE.gguf MODEL_DIR DTYPE [KV]

MODEL_DIR is the checkpoint that FILE was converted from, DTYPE is the type in which Hearth computes, and KV is
the type of llama.cpp's keys and values (by default DTYPE). Both programs get the same token ids, 48 prompts of
the conversations that hearth-tiny knows, and generate up to 96 tokens. For every pair of texts that part, the
script prints the two tokens, and by how much Hearth's token is preferred there by the exact model, by Hearth and
by llama.cpp. Then it prints how far the log-probabilities of each program are from the exact ones along its own
text. It needs torch and transformers.
"""
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from answers import PORT, cut, hearth, llama, parting, served
from questions import PROMPTS

LENGTH = 96


def main():
    file, directory, dtype = sys.argv[1:4]
    kv = sys.argv[4] if len(sys.argv) > 4 else dtype
    program = os.environ.get("HEARTH_BIN", "target/release/hearth")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    prompts = []
    for text in PROMPTS:
        message = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    # Without flash attention, only keys and values are rounded to the requested type.
    peer = [os.environ["LLAMA_SERVER"], "-m", file, "-c", "1024", "-np", "1", "-fa", "off"]
    peer += ["-ctk", kv, "-ctv", kv, "--port", str(PORT), "--no-webui"]
    serve = [program, "serve", "--model", file, "--device", "cpu", "--dtype", dtype, "--port", str(PORT)]
    theirs = served(peer, "/health", llama(LENGTH), prompts)
    ours = served(serve, "/ready", hearth(LENGTH), prompts)

    end = tokenizer.eos_token_id

    same, long, nearer = 0, 0, 0
    errors = {"hearth": [], "llama.cpp": []}
    for text, prompt, our, their in zip(PROMPTS, prompts, ours, theirs):
        our, their = cut(our, end), cut(their, end)
        for who, tokens in [("hearth", our), ("llama.cpp", their)]:
            ids = [token for token, _ in tokens]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + ids])).logits[0]
            exact = torch.log_softmax(logits, -1)
            for at, (token, top) in enumerate(tokens):
                errors[who].append(abs(exact[len(prompt) + at - 1, token].item() - top[token]))
        a, b = [[token for token, _ in tokens] for tokens in (our, their)]
        if a == b:
            same += 1
            long += len(a) >= 64
            continue
        at = parting(a, b)
        choice = [ids[at] if at < len(ids) else end for ids in (a, b)]
        with torch.no_grad():
            exact = model(torch.tensor([prompt + a[:at]])).logits[0, -1]
        margin = (exact[choice[0]] - exact[choice[1]]).item()
        nearer += margin > 0
        words = [tokenizer.decode([token]) for token in choice]
        # Where a text has ended, the log-probabilities of its end are not known.
        said = [tokens[at][1] if at < len(tokens) else {} for tokens in (our, their)]
        said = [f"{top[choice[0]] - top[choice[1]]:+.4f}" if top.keys() >= set(choice) else "?" for top in said]
        print(f"{text!r} parts at {at}: {words[0]!r}, llama.cpp {words[1]!r}; exactly {margin:+.4f}, "
              f"Hearth {said[0]}, llama.cpp {said[1]}")
    apart = len(PROMPTS) - same
    print(f"{same} of {len(PROMPTS)} the same, {long} of them with 64 tokens and more; of {apart} others "
          f"{nearer} are as the exact model has it in Hearth, {apart - nearer} in llama.cpp")
    for who, off in errors.items():
        squares = (sum(error * error for error in off) / len(off)) ** 0.5
        print(f"{who}: log-probabilities of {len(off)} tokens off by {squares:.5f} (RMS), at most {max(off):.4f}")


main()
