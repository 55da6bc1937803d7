"""The error of a KV cache in 8 bits: the log-probabilities of texts, with the cache in floats and in 8 bits.

    hearth-train samples --held-out --json --count 300 > held-out.jsonl
    HEARTH=target/release/hearth python benches/kv_cache.py held-out.jsonl [flags of hearth serve, such as --dtype f32]

Each line of the file has the messages of a conversation, and each conversation is one prompt. It prints the perplexity of
the last answers with both caches, and how far the log-probabilities are apart. It needs nothing but the standard library.
"""

import json
import math
import os
import statistics
import sys

import answers

TEXTS, FLAGS = sys.argv[1], sys.argv[2:]


def ask(messages):
    """Returns the log-probability of each token of a conversation's last answer, and the likeliest token there."""
    tokens_of = lambda some, asks: answers.post("/tokenize", {"messages": some, "add_generation_prompt": asks})["tokens"]
    ids, before = tokens_of(messages, False), tokens_of(messages[:-1], True)
    assert messages[-1]["role"] == "assistant" and ids[: len(before)] == before
    body = {
        "input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1,
    }
    meta = answers.post("/generate", body)["meta_info"]
    given = [entry[0] for entry in meta["input_token_logprobs"][1:]]
    likeliest = [entries[0][1] for entries in meta["input_top_logprobs"][1:]]
    assert len(given) == len(ids) - 1
    return list(zip(given, likeliest))[len(before) - 1 :]


def answered(kind):
    command = [os.environ["HEARTH"], "serve", "--device", "cpu", "--port", str(answers.PORT), "--kv-cache-dtype", kind, *FLAGS]
    with open(TEXTS) as lines:
        conversations = [json.loads(line)["messages"] for line in lines]
    return [token for answer in answers.served(command, "/ready", ask, conversations) for token in answer]


def perplexity(all_tokens):
    return math.exp(-statistics.fmean(logprob for logprob, _ in all_tokens))


floats, int8 = answered("auto"), answered("int8")
apart = [abs(a - b) for (a, _), (b, _) in zip(floats, int8, strict=True)]
same = statistics.fmean(a == b for (_, a), (_, b) in zip(floats, int8))
print(f"{len(floats)} tokens, {' '.join(FLAGS)}")
print(f"perplexity: floats {perplexity(floats):.5f}, int8 {perplexity(int8):.5f}, {perplexity(int8) / perplexity(floats) - 1:+.4%}")
print(f"log-probabilities apart: mean {statistics.fmean(apart):.5f}, largest {max(apart):.4f}; the likeliest token is the same for {same:.3%}")
