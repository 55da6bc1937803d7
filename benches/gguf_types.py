#!/usr/bin/env python3
"""Compares Hearth and llama.cpp on hearth-tiny in each type of weights: greedy texts, log-probabilities and perplexity.

    hearth-train samples --held-out --json --count 300 > held-out.jsonl
    LLAMA_BIN=.../build/bin HEARTH=target/release/hearth benches/gguf_types.py held-out.jsonl [TYPE ...]

LLAMA_BIN is a folder with llama-quantize, which makes the files, and llama-server. The larger blocks have 256 columns and
hearth-tiny has 128 and 384, so the script pads it with zeros to 256 and 512 columns; the padded model has the same outputs.

For each type, the exact model is the file with its values written as f32. With --dtype f32, Hearth's activations are f32 for
any file; with --dtype bf16 the weights stay in their blocks and both programs round activations to 8 bits. The script prints
in how many of 48 prompts texts are the same, how far the log-probabilities of each program are from the exact ones along its
own text, and for the texts that part, which of the two tokens the exact model prefers. The perplexities are those of the
last answers of the held-out conversations, in Hearth. It needs the packages gguf and numpy.
"""

import json
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy

from answers import PORT, cut, hearth, llama, parting, post, served
from questions import PROMPTS

MODEL = os.path.join(os.path.dirname(__file__), "..", "model", "hearth-tiny")
TYPES = "Q8_0 Q6_K Q5_K Q5_1 Q5_0 Q4_K Q4_1 Q4_0 IQ4_XS IQ4_NL Q3_K Q2_K".split()
# The names of llama-quantize for types that it also has as mixtures.
NAMES = {"Q5_K": "Q5_K_S", "Q4_K": "Q4_K_S", "Q3_K": "Q3_K_S"}
LENGTH = 96
END = 2
UNIT = 256


def tensors():
    """The tensors of hearth-tiny as f32, by their names in Hugging Face's format."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    for name, entry in header.items():
        assert entry["dtype"] == "BF16"
        bits = numpy.frombuffer(data[slice(*entry["data_offsets"])], dtype=numpy.uint16)
        yield name, (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(entry["shape"])


def padded(name, values, config):
    """The name of a tensor in GGUF, and its values with zeros up to whole units."""
    width, hidden = config["head_dim"], config["hidden_size"]
    part = name.split(".")[-2]
    if values.ndim == 1:
        # The mean of the squares is over twice as many elements, half of which are zero.
        values = numpy.pad(values * numpy.float32(math.sqrt(hidden / UNIT)), (0, UNIT - hidden))
    else:
        if part in ("q_proj", "k_proj"):
            # llama.cpp rotates neighbours, Hugging Face's models the two halves of a head.
            halves = values.reshape(-1, 2, width // 2, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        rows = 0 if part == "embed_tokens" else -values.shape[0] % UNIT
        rows = values.shape[0] if part in ("k_proj", "v_proj") else rows
        values = numpy.pad(values, ((0, rows), (0, -values.shape[1] % UNIT)))
    names = {
        "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
        "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    }
    layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    return f"{layer}{names[part]}.weight", values


def write(path, matrices):
    """Writes the padded hearth-tiny with these tensors."""

    def read(name):
        with open(os.path.join(MODEL, name)) as file:
            return json.load(file)

    config, tokenizer, chat = (read(name) for name in ["config.json", "tokenizer.json", "tokenizer_config.json"])
    scale = UNIT // config["hidden_size"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(UNIT)
    writer.add_feed_forward_length(-(-config["intermediate_size"] // UNIT) * UNIT)
    writer.add_head_count(config["num_attention_heads"] * scale)
    writer.add_head_count_kv(config["num_key_value_heads"] * scale)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"] / scale)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    # llama.cpp has no name for hearth-tiny's own pattern. All prompts are token ids.
    writer.add_tokenizer_pre("smollm")
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda entry: entry[1])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_vocab_size(len(vocabulary))
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([3 if index in special else 1 for _, index in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat["chat_template"])
    for name, values in matrices:
        writer.add_tensor(name, numpy.ascontiguousarray(values, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def exactly(path):
    """The tensors of a file as f32."""
    for tensor in gguf.GGUFReader(path).tensors:
        yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type)


def ids_of(message):
    body = {"messages": [{"role": "user", "content": message}], "add_generation_prompt": True}
    return post("/tokenize", body)["tokens"]


def logprobs(request):
    """The log-probability of each token of a text but the first `start`, and the likeliest tokens there."""
    ids, start = request
    body = {
        "input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 10,
    }
    meta = post("/generate", body)["meta_info"]
    given = [entry[0] for entry in meta["input_token_logprobs"][1:]]
    top = [{token: logprob for logprob, token, _ in at} for at in meta["input_top_logprobs"][1:]]
    return list(zip(given, top))[start - 1 :]


def answer_of(line):
    """The ids of a conversation, and where its last answer begins."""
    messages = json.loads(line)["messages"]
    tokens_of = lambda some, asks: post("/tokenize", {"messages": some, "add_generation_prompt": asks})["tokens"]
    ids, before = tokens_of(messages, False), tokens_of(messages[:-1], True)
    assert ids[: len(before)] == before
    return ids, len(before)


def on_hearth(file, ask, requests, dtype="f32"):
    command = [os.environ["HEARTH"], "serve", "--model", file, "--device", "cpu", "--dtype", dtype]
    return served([*command, "--port", str(PORT)], "/ready", ask, requests)


def on_llama(file, prompts):
    command = [os.path.join(os.environ["LLAMA_BIN"], "llama-server"), "-m", file, "-c", "1024", "-np", "1", "-fa", "off"]
    command += ["-ctk", "f32", "-ctv", "f32", "--port", str(PORT), "--no-webui"]
    return served(command, "/health", llama(LENGTH), prompts)


def perplexity(answers):
    return math.exp(-statistics.fmean(logprob for answer in answers for logprob, _ in answer))


def compare(kind, folder, prompts, held_out):
    file, exact = os.path.join(folder, f"{kind}.gguf"), os.path.join(folder, "exact.gguf")
    quantize = [os.path.join(os.environ["LLAMA_BIN"], "llama-quantize"), "--pure", os.path.join(folder, "f32.gguf"), file]
    subprocess.run([*quantize, NAMES.get(kind, kind)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) > 1}
    assert kinds == {kind}, f"the matrices of {file} are in {kinds}"
    write(exact, exactly(file))

    texts = lambda answers: [[token for token, _ in cut(answer, END)] for answer in answers]
    same = lambda some, others: sum(a == b for a, b in zip(some, others))
    in_f32, exactly_theirs = texts(on_hearth(file, hearth(LENGTH), prompts)), texts(on_llama(exact, prompts))
    ours, theirs = on_hearth(file, hearth(LENGTH), prompts, "bf16"), on_llama(file, prompts)
    ours, theirs = ([cut(answer, END) for answer in answers] for answers in (ours, theirs))

    requests = [(prompt + [token for token, _ in text], len(prompt)) for answers in (ours, theirs)
                for prompt, text in zip(prompts, answers)]
    truth = on_hearth(exact, logprobs, [*requests, *held_out])
    truth, of_held_out = truth[: len(requests)], truth[len(requests) :]
    errors = []
    for answers, true in [(ours, truth[: len(prompts)]), (theirs, truth[len(prompts) :])]:
        off = [abs(top[token] - given) for text, at in zip(answers, true) for (token, top), (given, _) in zip(text, at)]
        errors.append(math.sqrt(statistics.fmean(error * error for error in off)))
    margins = {"Hearth": [], "llama.cpp": []}
    for a, b, true in zip(texts(ours), texts(theirs), truth):
        at = parting([(token,) for token in a], [(token,) for token in b])
        if at < min(len(a), len(b)) and b[at] in true[at][1]:
            margin = true[at][1][a[at]] - true[at][1][b[at]]
            margins["Hearth" if margin > 0 else "llama.cpp"].append(abs(margin))
    parted = ", ".join(f"{len(of)} as in {program} (by at most {max(of, default=0):.3f})" for program, of in margins.items())
    packed = on_hearth(file, logprobs, held_out, "bf16")
    print(f"{kind}: of {len(prompts)} texts, {same(in_f32, exactly_theirs)} of Hearth in f32 are those of llama.cpp on the exact "
          f"model; in blocks {same(texts(ours), texts(theirs))} are the same, {same(texts(ours), in_f32)} of Hearth's and "
          f"{same(texts(theirs), in_f32)} of llama.cpp's are exact; where they part: {parted}; log-probabilities off by "
          f"{errors[0]:.5f}, llama.cpp {errors[1]:.5f} (RMS); perplexity {perplexity(of_held_out):.5f}, "
          f"in blocks {perplexity(packed):.5f}", flush=True)


def main():
    with open(os.path.join(MODEL, "config.json")) as file:
        config = json.load(file)
    with open(sys.argv[1]) as file:
        lines = file.readlines()
    prompts = on_hearth(MODEL, ids_of, PROMPTS)
    held_out = on_hearth(MODEL, answer_of, lines)
    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "f32.gguf")
        write(whole, [padded(name, values, config) for name, values in tensors()])
        plain, other = (perplexity(on_hearth(model, logprobs, held_out)) for model in (MODEL, whole))
        print(f"perplexity of hearth-tiny {plain:.5f}, padded {other:.5f}", flush=True)
        for kind in sys.argv[2:] or TYPES:
            compare(kind, folder, prompts, held_out)


main()
