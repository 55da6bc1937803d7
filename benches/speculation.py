"""Measures speculative decoding over HTTP: a server with it beside one without it, in turns.

    hearth --port 8000 & hearth --port 8001 --speculative-algorithm NGRAM &
    python benches/speculation.py http://127.0.0.1:8000 http://127.0.0.1:8001 [clients ...]

or with a draft model:

    hearth --model LARGE --port 8001 --speculative-config '{"method":"draft_model","model":"SMALL","num_speculative_tokens":4}'

again: greedy answers to prompts that both servers have answered before, so that the cache has the continuation.
edit: the prediction is an earlier answer in which one word in twelve was changed. Chats have predictions, so this
needs a model with a chat template; a model without one gets token ids.
greedy: greedy answers to a prompt that only a draft model predicts.
story: sampled answers to a prompt that nothing was predicted for.
Each line has the ratio of the best times (above 1: speculation is faster), because disturbances on a shared machine
only slow down; then the ratios of the rounds, and how many of the drafted tokens were accepted. The answers of both
servers must be equal.
"""

import json
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request

OFF, ON = sys.argv[1:3]
CLIENTS = [int(given) for given in sys.argv[3:]] or [1, 64]
TOKENS = 128
ROUNDS = 15
# The cache has nothing of an earlier run.
SALT = str(time.time_ns())
TOPICS = ["a cat", "a dog", "the sea", "a king", "two friends", "a red ball", "the moon", "a long road"]


def call(base, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def ask(base, body):
    if CHATS:
        return call(base, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    return call(base, "/v1/completions", body)["choices"][0]["text"]


def run(base, bodies):
    """Sends all bodies at once. Returns the time and the answers."""
    answers = [None] * len(bodies)

    def work(index):
        answers[index] = ask(base, bodies[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(bodies))]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start, answers


def story(index, **more):
    if not CHATS:
        prompt = [(index * 7919 + place * 104729) % 49000 for place in range(64)]
        return {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, **more}
    topic = TOPICS[index % len(TOPICS)]
    text = f"Tell me story number {index} about {topic}."
    return {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "ignore_eos": True, **more}


def changed(text):
    words = text.split(" ")
    words[5::12] = ["other"] * len(words[5::12])
    return " ".join(words)


def again(clients, _):
    return [story(index, temperature=0, cache_salt=f"{SALT} again") for index in range(clients)]


def edit(clients, attempt):
    # A new salt keeps the cache from knowing the answer.
    salt = f"{SALT} edit {attempt}"
    bodies = [story(index, temperature=0, cache_salt=salt) for index in range(clients)]
    for body, text in zip(bodies, EARLIER):
        body["prediction"] = {"type": "content", "content": changed(text)}
    return bodies


def greedy(clients, attempt):
    salt = f"{SALT} greedy {attempt}"
    return [story(1000 + index, temperature=0, cache_salt=salt) for index in range(clients)]


def stories(clients, attempt):
    salt = f"{SALT} story {attempt}"
    return [story(seed, temperature=1, seed=seed, cache_salt=salt) for seed in range(clients)]


def counts():
    stats = call(ON, "/server_info")["internal_states"][0]
    model = stats.get("draft_model") or {"forwards": 0}
    return {"forwards": model["forwards"], **{key: stats[key] for key in ("drafted_tokens", "accepted_tokens")}}


def can_chat():
    try:
        call(OFF, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    except urllib.error.HTTPError:
        return False
    return True


CHATS = can_chat()
KINDS = [("again", again), ("edit", edit), ("greedy", greedy), ("story", stories)]
EARLIER = []
for clients in CLIENTS:
    _, EARLIER = run(OFF, again(clients, 0))
    for name, kind in KINDS:
        if kind is edit and not CHATS:
            continue
        for base in (OFF, ON):
            run(base, kind(clients, 0))
        before, ratios, best = counts(), [], {OFF: 1e9, ON: 1e9}
        for attempt in range(1, ROUNDS + 1):
            order = (OFF, ON) if attempt % 2 else (ON, OFF)
            seen = {base: run(base, kind(clients, attempt)) for base in order}
            assert seen[OFF][1] == seen[ON][1], f"{name}: speculation changed an answer"
            ratios.append(seen[OFF][0] / seen[ON][0])
            for base in order:
                best[base] = min(best[base], seen[base][0])
        after = counts()
        spent = {key: after[key] - before[key] for key in after}
        drafted, accepted = spent["drafted_tokens"], spent["accepted_tokens"]
        by_model = f", {spent['forwards']} forward passes of the draft model" if spent["forwards"] else ""
        print(
            f"{clients:3} clients, {name:6} {best[OFF] / best[ON]:.2f}x (rounds: median {statistics.median(ratios):.2f}, "
            f"{min(ratios):.2f} to {max(ratios):.2f}), {accepted} of {drafted} drafted tokens accepted{by_model}",
            flush=True,
        )
