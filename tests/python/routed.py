"""The code that the scripts about routers share: requests through a router give the bytes of a direct call."""

import itertools
import json
import re
import socket

import requests

# These fields differ between two calls of the same server: ids, times, and the state of the cache.
VARYING = re.compile(
    r'"(?:id|created|created_at|cached_tokens|device|host|e2e_latency|first_token_latency)":'
    r'(?:"[^"]*"|[-+.0-9e]+)'
)
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def sixty(model):
    """Sixty requests, each with its path: chats, completions and SGLang's own, greedy and seeded, whole and streamed."""
    names = ["Ada", "Ben", "Cleo", "Dan", "Eve"]
    samplings = [{"temperature": 0}, {"temperature": 0.9, "seed": 7}]
    for name, sampling, stream in itertools.product(names, samplings, [False, True]):
        chat = {"model": model, "messages": [{"role": "user", "content": f"Who is {name}?"}],
                "max_tokens": 8, "stream": stream, **sampling}
        if name == "Ben":
            chat.update(logprobs=True, top_logprobs=2)
        if name == "Cleo":
            schema = {"name": "answer", "schema": SCHEMA}
            chat.update(response_format={"type": "json_schema", "json_schema": schema}, max_tokens=40)
        yield "/v1/chat/completions", chat
        completion = {"model": model, "prompt": f"{name} was", "max_tokens": 8, "stream": stream, **sampling}
        if name == "Dan":
            completion.update(n=2)
        if name == "Eve":
            completion.update(prompt=["Eve was", "Once"], stop="q")
        yield "/v1/completions", completion
        native = {"temperature": sampling["temperature"], "max_new_tokens": 8}
        if "seed" in sampling:
            native["sampling_seed"] = sampling["seed"]
        body = {"text": f"{name} went", "stream": stream, "sampling_params": native}
        if name == "Ada":
            body.update(return_logprob=True)
        # The client names no model here, and the routers write `unknown` or null.
        yield "/generate", body


def answer(url, path, body):
    """What the answer says. The events of a stream are joined, because a router may cut it elsewhere."""
    response = requests.post(url + path, json=body, timeout=60)
    # Some routers drop the character set of a stream, which is UTF-8 by definition.
    response.encoding = "utf-8"
    assert response.status_code == 200, (url, path, body, response.text)
    if not body["stream"]:
        return VARYING.sub("", response.text)
    lines = [line[len("data: "):] for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]", response.text
    if path == "/generate":
        return VARYING.sub("", lines[-1])
    said = {}
    for event in map(json.loads, lines):
        for choice in event["choices"]:
            delta = choice.get("delta", choice)
            text = delta.get("content") or delta.get("text") or ""
            tokens = json.dumps((choice.get("logprobs") or {}).get("content") or [])
            before = said.get(choice["index"], ("", "", None))
            said[choice["index"]] = (before[0] + text, before[1] + tokens.strip("[]"),
                                     choice["finish_reason"] or before[2])
    return said


def assert_same_as_direct(router, worker, model):
    count = 0
    for path, body in sixty(model):
        direct, routed = answer(worker, path, body), answer(router, path, body)
        assert direct == routed, (path, body, direct, routed)
        count += 1
    assert count == 60, count
