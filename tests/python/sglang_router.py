"""Tests SGLang's own router in front of two running Hearth servers, end to end.

    python sglang_router.py http://127.0.0.1:8001 MODEL http://127.0.0.1:8002

The served model has random weights; its tokens are bytes, and its context is 2048 tokens.
"""

import json
import subprocess
import sys
import time
from importlib.metadata import version

import requests
from routed import assert_same_as_direct, free_port
from running import run

FIRST, MODEL, SECOND = sys.argv[1:4]
WORKERS = [FIRST, SECOND]
PORT = free_port()
ROUTER = f"http://127.0.0.1:{PORT}"


def start():
    router = subprocess.Popen(
        [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1",
         "--port", str(PORT), "--prometheus-port", str(free_port()), "--policy", "round_robin",
         "--worker-urls", *WORKERS],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and router.poll() is None:
        try:
            if requests.get(ROUTER + "/readiness", timeout=5).json()["healthy_workers"] == 2:
                return router
        except (requests.ConnectionError, KeyError, ValueError):
            pass
        time.sleep(0.1)
    router.kill()
    sys.exit("the router never saw two healthy workers")


def post(path, body, **options):
    answer = requests.post(ROUTER + path, json=body, timeout=60, **options)
    assert answer.status_code == 200, answer.text
    return answer


def stats(worker):
    return requests.get(worker + "/server_info", timeout=60).json()["internal_states"][0]


def generate(text, **sampling):
    body = {"text": text, "sampling_params": {"max_new_tokens": 8, "temperature": 0, **sampling}}
    return post("/generate", body).json()


def test_the_router_knows_what_is_served():
    workers = requests.get(ROUTER + "/workers", timeout=60).json()["workers"]
    assert sorted(worker["url"] for worker in workers) == sorted(WORKERS), workers
    assert all(worker["model_id"] == MODEL and worker["is_healthy"] for worker in workers), workers
    models = requests.get(ROUTER + "/v1/models", timeout=60).json()["data"]
    assert [model["id"] for model in models] == [MODEL], models
    loads = requests.get(ROUTER + "/get_loads", timeout=60).json()["workers"]
    assert [load["load"] for load in loads] == [0, 0], loads


def test_requests_are_shared_between_the_workers():
    before = [stats(worker)["finished"] for worker in WORKERS]
    texts = {generate("Once upon a time")["text"] for _ in range(6)}
    assert len(texts) == 1, "both serve the same model"
    after = [stats(worker)["finished"] for worker in WORKERS]
    assert [b - a for a, b in zip(before, after)] == [3, 3], (before, after)


def test_sixty_requests_give_the_bytes_of_a_direct_call():
    assert_same_as_direct(ROUTER, FIRST, MODEL)


def test_streams_pass_through():
    body = {"text": "Once", "stream": True,
            "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    lines = [line.decode() for line in post("/generate", body, stream=True).iter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines
    last = json.loads(lines[-2][len("data: "):])
    assert last["text"] == generate("Once")["text"], last
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8,
            "temperature": 0}
    whole = post("/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
    lines = post("/v1/chat/completions", {**chat, "stream": True}, stream=True).iter_lines()
    chunks = [line.decode()[len("data: "):] for line in lines if line]
    assert chunks.pop() == "[DONE]", chunks
    deltas = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == whole, (deltas, whole)


def test_completions_pass_through():
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 8, "temperature": 0}
    text = post("/v1/completions", body).json()["choices"][0]["text"]
    assert text == generate("Once")["text"], text


def test_a_client_that_leaves_is_noticed_behind_the_router():
    body = {"text": "Once", "stream": True,
            "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
    cancelled = sum(stats(worker)["cancelled"] for worker in WORKERS)
    # The model is fast: a response may be complete before the disconnect is noticed, so there are several tries.
    for _ in range(5):
        answer = post("/generate", body, stream=True)
        next(answer.iter_lines())
        answer.close()
        while any(stats(worker)["running"] for worker in WORKERS):
            time.sleep(0.01)
        if sum(stats(worker)["cancelled"] for worker in WORKERS) > cancelled:
            return
    raise AssertionError([stats(worker) for worker in WORKERS])


def test_a_flush_reaches_all_workers():
    text = "Forget me. " * 10
    for _ in range(2):
        generate(text)
    post("/flush_cache", None)
    assert [stats(worker)["kv"]["cached"] for worker in WORKERS] == [0, 0]


if __name__ == "__main__":
    router = start()
    try:
        run(globals(), f"sglang-router {version('sglang-router')}")
    finally:
        router.terminate()
        router.wait()
