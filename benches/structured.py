"""Decode with and without a grammar, and with and without jump-forward, over HTTP.

    hearth & python benches/structured.py http://127.0.0.1:8000

Greedy, ten requests one after another from each of 1 and 8 clients.
"""

import json
import sys
import threading
import time
import urllib.request

BASE = sys.argv[1]


def record(properties):
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


WAND = record({"wood": {"enum": ["holly", "yew", "oak"]}, "length_in_inches": {"type": "integer", "minimum": 7, "maximum": 14}})
HOUSES = ["Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"]
WEATHER = record({"location": {"type": "string", "maxLength": 10}, "unit": {"enum": ["celsius", "fahrenheit"]}})
LIGHT = record({"brightness_percent": {"type": "integer", "minimum": 0, "maximum": 100}})
SCHEMAS = {
    "long strings": record({
        "title": {"type": "string", "minLength": 100, "maxLength": 150},
        "words": {"type": "array", "minItems": 10, "maxItems": 10, "items": {"type": "string", "minLength": 4, "maxLength": 8}},
    }),
    "fixed keys": record({
        "name": {"type": "string", "maxLength": 12, "pattern": "^[A-Z][a-z]+$"},
        "house": {"enum": HOUSES}, "wand": WAND, "alive": {"type": "boolean"},
    }),
    "tool call": {"anyOf": [
        record({"name": {"const": "get_current_weather"}, "arguments": WEATHER}),
        record({"name": {"const": "set_light_brightness"}, "arguments": LIGHT}),
    ]},
}


def post(body):
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0, **body}
    request = urllib.request.Request(
        BASE + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def run(clients, body):
    """Tokens a second."""
    tokens = []
    work = lambda: tokens.extend(post(body) for _ in range(10))
    threads = [threading.Thread(target=work) for _ in range(clients)]
    start = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(tokens) / (time.monotonic() - start)


def best(clients, *bodies):
    """Of each, the best of seven: on a shared machine what disturbs only slows down. In turns."""
    rounds = [[run(clients, body) for body in bodies] for _ in range(7)]
    return [max(speeds) for speeds in zip(*rounds)]


for clients in (1, 8):
    for name, schema in SCHEMAS.items():
        for layout in ("natural", "compact"):
            body = {"max_tokens": 300, "json_whitespace": layout, "guided_json": schema}
            free, plain, jumping = best(
                clients,
                {"max_tokens": 100, "ignore_eos": True},
                {**body, "jump_forward": False},
                {**body, "jump_forward": True},
            )
            print(
                f"{clients} clients, {name}, {layout}: free {free:.0f} tok/s; {plain / free:.2f}x of it "
                f"without jump-forward, {jumping / free:.2f}x with: {jumping / plain:.2f}"
            )
