"""Sends a running Hearth server the exact requests of SGLang's front end, of its load generator and of its router.

    python sglang_contract.py http://127.0.0.1:8000 MODEL

`RuntimeEndpoint` below repeats the part of sglang.lang.backend.runtime_endpoint of sglang 0.5.23 that talks to a
server, also on `requests`; importing the original needs torch. The served model has random weights; its tokens are
bytes, and its context is 2048 tokens.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import requests
from running import run

BASE_URL, MODEL = sys.argv[1:3]


class RuntimeEndpoint:
    """Sends the requests of SGLang's front end, in its order and with all of its fields."""

    def __init__(self, base_url):
        self.base_url = base_url
        answer = self.request("/get_model_info", method="GET")
        self.model_path = answer["model_path"]

    def request(self, path, data=None, method="POST", stream=False):
        answer = requests.request(
            method, self.base_url + path, json=data, stream=stream, timeout=60,
            headers={"Authorization": "Bearer none"},
        )
        if answer.status_code != 200:
            try:
                error = answer.json()
            except json.JSONDecodeError:
                error = answer.text
            raise RuntimeError(error)
        return answer if stream else answer.json()

    @staticmethod
    def sampling(**given):
        # These are the fields of SglSamplingParams.to_srt_kwargs(), and those that gen() of an `int` or a `str` adds.
        return {
            "max_new_tokens": 128, "min_new_tokens": 0, "n": 1, "stop": (), "stop_token_ids": (),
            "stop_regex": (), "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": False,
            "regex": None, "json_schema": None, **given,
        }

    def generate(self, text, **sampling):
        data = {"text": text, "sampling_params": {
            "skip_special_tokens": True, "spaces_between_special_tokens": True,
            **self.sampling(**sampling),
        }}
        answer = self.request("/generate", data)
        return answer["text"], answer["meta_info"]

    def generate_stream(self, text, **sampling):
        data = {"text": text, "stream": True, "sampling_params": {
            "skip_special_tokens": True, "spaces_between_special_tokens": True,
            **self.sampling(**sampling),
        }}
        pos = 0
        for chunk in self.request("/generate", data, stream=True).iter_lines(decode_unicode=False):
            chunk = chunk.decode("utf-8")
            if chunk and chunk.startswith("data:"):
                if chunk == "data: [DONE]":
                    return
                data = json.loads(chunk[5:].strip("\n"))
                chunk_text = data["text"][pos:]
                pos += len(chunk_text)
                yield chunk_text, data["meta_info"]
        raise AssertionError("the stream did not end in [DONE]")

    def commit(self, text):
        data = {"text": text, "sampling_params": {"max_new_tokens": 0}}
        return self.request("/generate", data)

    def cache_prefix(self, text):
        return self.commit(text)

    def flush_cache(self):
        answer = requests.post(self.base_url + "/flush_cache", timeout=60)
        assert answer.status_code == 200, answer.text

    def scored(self, inputs, **extra):
        data = {**inputs, "return_logprob": True, **extra,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0}}
        return self.request("/generate", data)

    def select(self, prefix, choices):
        # This caches the common prefix and returns its length.
        prompt_len = self.cache_prefix(prefix)["meta_info"]["prompt_tokens"]
        answers = self.scored(
            {"text": [prefix + choice for choice in choices]},
            return_text_in_logprobs=True, logprob_start_len=max(prompt_len - 2, 0),
        )
        scores, input_logprobs = [], []
        for answer in answers:
            logprobs = answer["meta_info"]["input_token_logprobs"]
            assert answer["meta_info"]["output_token_logprobs"] == []
            if logprobs[0][0] is None:
                logprobs = logprobs[1:]
            # This is token healing: the token with which the prefix ends is not part of the choice.
            if prefix.endswith(logprobs[0][2]):
                logprobs = logprobs[1:]
            known = [logprob for logprob, _, _ in logprobs if logprob]
            scores.append(sum(known) / len(known))
            input_logprobs.append(logprobs)
        ids = [[token for _, token, _ in logprobs] for logprobs in input_logprobs]
        unconditional = [
            answer["meta_info"]["input_token_logprobs"] for answer in self.scored({"input_ids": ids})
        ]
        best = max(range(len(choices)), key=scores.__getitem__)
        return choices[best], scores, input_logprobs, unconditional


backend = RuntimeEndpoint(BASE_URL)


def test_generate():
    text, meta = backend.generate("Once upon a time", max_new_tokens=16, temperature=0)
    assert meta["prompt_tokens"] == 16 and meta["completion_tokens"] == 16, meta
    assert meta["finish_reason"] == {"type": "length", "length": 16}, meta
    pieces = list(backend.generate_stream("Once upon a time", max_new_tokens=16, temperature=0))
    assert "".join(piece for piece, _ in pieces) == text, (pieces, text)
    assert all(meta["finish_reason"] is None for _, meta in pieces[:-1]), pieces
    assert pieces[-1][1]["finish_reason"]["type"] == "length", pieces[-1]


def test_select_scores_what_completions_score():
    prefix, choices = "The best of the three is the ", ["first", "second", "third one"]
    chosen, scores, logprobs, unconditional = backend.select(prefix, choices)
    # OpenAI's API gives the same numbers if the prompt is echoed with its log-probabilities.
    for choice, score, scored in zip(choices, scores, logprobs):
        echoed = requests.post(BASE_URL + "/v1/completions", timeout=60, json={
            "model": MODEL, "prompt": prefix + choice, "echo": True, "logprobs": 0, "max_tokens": 0,
        }).json()["choices"][0]["logprobs"]["token_logprobs"][len(prefix):]
        assert [token for _, _, token in scored] == list(choice), scored
        assert len(echoed) == len(scored)
        assert all(abs(a - b[0]) < 1e-3 for a, b in zip(echoed, scored)), (echoed, scored)
        assert abs(score - sum(echoed) / len(echoed)) < 1e-3
    assert chosen == choices[scores.index(max(scores))]
    for choice, alone in zip(choices, unconditional):
        # The default of `logprob_start_len` is -1: the prompt is not scored.
        assert alone == [], (choice, alone)


def test_the_prefix_of_a_select_is_computed_once():
    prefix = "What is said once need not be read twice. " * 4
    backend.flush_cache()
    length = backend.cache_prefix(prefix)["meta_info"]["prompt_tokens"]
    answers = backend.scored(
        {"text": [prefix + "yes", prefix + "no"]}, logprob_start_len=length - 2,
    )
    assert [a["meta_info"]["cached_tokens"] for a in answers] == [length - 2] * 2, answers


def test_flush_cache_forgets():
    prefix = "Forget me. " * 10
    backend.commit(prefix)
    assert backend.commit(prefix)["meta_info"]["cached_tokens"] == len(prefix) - 1
    backend.flush_cache()
    assert backend.commit(prefix)["meta_info"]["cached_tokens"] == 0


def test_errors_are_runtime_errors_that_say_why():
    try:
        backend.generate("a", temperature=-1)
    except RuntimeError as error:
        assert "between 0 and 2" in error.args[0]["message"], error
    else:
        raise AssertionError("no error")


def test_what_the_load_generator_sends():
    assert requests.get(BASE_URL + "/v1/models", timeout=60).json()["data"][0]["id"] == MODEL
    body = {
        "text": "Once", "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
        "stream": True, "lora_path": None, "return_logprob": False, "logprob_start_len": -1,
        "image_data": None,
    }
    answer = requests.post(BASE_URL + "/generate", json=body, stream=True, timeout=60)
    lines = [line.decode() for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines
    last = json.loads(lines[-2][len("data: "):])
    assert last["meta_info"]["completion_tokens"] == 8, last


def test_what_the_router_asks():
    assert requests.get(BASE_URL + "/health", timeout=60).status_code == 200
    info = requests.get(BASE_URL + "/server_info", timeout=60).json()
    assert (info["tp_size"], info["dp_size"]) == (1, 1), info
    # If one of these fields has another type, the router ignores all of them.
    assert info["model"] == info["served_model_name"] == MODEL, info
    assert type(info["model_path"]) is type(info["version"]) is str, info
    model = requests.get(BASE_URL + "/model_info", timeout=60).json()
    assert model["served_model_name"] == MODEL and model["architectures"], model
    (load,) = requests.get(BASE_URL + "/get_load", timeout=60).json()
    assert {"num_reqs", "num_tokens"} <= load.keys(), load
    body = {
        "text": "Once", "model": None, "sampling_params": {"max_new_tokens": 8},
        "return_text_in_logprobs": False, "stream": False, "log_metrics": True,
        "return_hidden_states": False, "background": False, "no_logs": False,
        "return_bytes": False, "return_entropy": False,
    }
    assert requests.post(BASE_URL + "/generate", json=body, timeout=60).status_code == 200


def test_tokens_of_a_text_and_back():
    answer = requests.post(BASE_URL + "/tokenize", json={"prompt": "Café"}, timeout=60).json()
    assert answer["tokens"] == list("Café".encode()) and answer["count"] == 5, answer
    back = requests.post(BASE_URL + "/detokenize", json={"tokens": answer["tokens"]}, timeout=60)
    assert back.json()["text"] == "Café", back.text


def test_a_run_of_the_front_end_with_many_threads():
    # This is what run_batch() of the front end does: one thread for each program.
    def program(number):
        text, _ = backend.generate(f"Number {number}: ", max_new_tokens=8, temperature=0)
        chosen, *_ = backend.select(f"Number {number}: {text} is ", ["odd", "even"])
        return text, chosen

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(program, range(8)))
    assert [program(number) for number in (0, 7)] == [together[0], together[7]]


if __name__ == "__main__":
    run(globals(), "the contract of sglang 0.5.23")
