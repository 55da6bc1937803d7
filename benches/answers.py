"""Greedy answers of Hearth and of llama-server with log-probabilities, for the scripts that compare the two. It needs
nothing but the standard library."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 8941
TOP = 10


def post(path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))


def served(command, ready, ask, prompts):
    """Starts a server, which must listen on PORT, and returns its answers to the prompts."""
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


def llama(length):
    """Returns a function that asks llama-server for `length` tokens after the ids of a prompt. It returns each token
    with the log-probabilities of the most likely tokens there."""

    def ask(prompt):
        body = {"prompt": prompt, "n_predict": length, "temperature": 0, "n_probs": TOP, "cache_prompt": False}
        answer = post("/completion", body)["completion_probabilities"]
        return [(token["id"], {top["id"]: top["logprob"] for top in token["top_logprobs"]}) for token in answer]

    return ask


def hearth(length, model=None):
    """Returns the same function for Hearth. `model` is the name of an adapter."""

    def ask(prompt):
        sampling = {"max_new_tokens": length, "temperature": 0}
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": TOP}
        if model:
            body["lora_path"] = model
        answer = post("/generate", body)["meta_info"]
        top = [{token: logprob for logprob, token, _ in at} for at in answer["output_top_logprobs"]]
        return [(token, top) for (_, token, _), top in zip(answer["output_token_logprobs"], top)]

    return ask


def cut(tokens, end):
    """Returns the tokens before `end`."""
    ids = [token for token, _ in tokens]
    return tokens[: ids.index(end)] if end in ids else tokens


def parting(a, b):
    """Returns where two lists of tokens part."""
    return next((i for i, pair in enumerate(zip(a, b)) if pair[0] != pair[1]), min(len(a), len(b)))


def compare(title, ours, theirs, end, length):
    """Prints where Hearth's texts and those of llama.cpp part, how many are the same, and how far the log-probabilities of
    their tokens are apart up to there. Returns the number of texts that are the same."""
    same = long = 0
    apart = []
    for number, answers in enumerate(zip(ours, theirs)):
        our, their = (cut(tokens, end) for tokens in answers)
        a, b = ([token for token, _ in tokens] for tokens in (our, their))
        at = parting(a, b)
        apart += [abs(one[token] - other[token]) for (token, one), (_, other) in zip(our[:at], their[:at])]
        if a == b:
            same += 1
            long += len(a) == length
        elif at == min(len(a), len(b)):
            print(f"{title}: text {number} ends at {len(a)}, llama.cpp's at {len(b)}")
        else:
            margins = [tokens[at][1].get(a[at], -99) - tokens[at][1].get(b[at], -99) for tokens in (our, their)]
            print(f"{title}: text {number} parts at {at}: Hearth {margins[0]:+.5f}, llama.cpp {margins[1]:+.5f}")
    print(f"{title}: {same} of {len(ours)} texts the same, {long} of them with {length} tokens; the log-probabilities of "
          f"{len(apart)} tokens differ by at most {max(apart, default=0):.5f}")
    return same
