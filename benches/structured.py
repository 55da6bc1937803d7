"""Measures decoding with and without a grammar, and with and without jump-forward, over HTTP.

    hearth & python benches/structured.py http://127.0.0.1:8000 [speed] [first] [abuse]

speed: greedy decoding, ten requests one after another from 1 client and from each of 8 clients; "mixed"
takes all schemas in both layouts, in turns. first: the time to the first text of a stream, with a schema that
has been compiled before and without a schema, in turns. abuse: the gaps between the tokens of one stream while
64 grammars arrive that are refused, and without them.
"""

import json
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request

BASE = sys.argv[1]
PARTS = sys.argv[2:] or ["speed", "first", "abuse"]


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


STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0}


def opened(body):
    request = urllib.request.Request(
        BASE + "/v1/chat/completions", json.dumps({**STORY, **body}).encode(), {"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=120)


def post(body):
    with opened(body) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def run(clients, bodies):
    """Returns tokens a second."""
    tokens = []
    work = lambda: tokens.extend(post(bodies[i % len(bodies)]) for i in range(max(10, len(bodies))))
    threads = [threading.Thread(target=work) for _ in range(clients)]
    start = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(tokens) / (time.monotonic() - start)


def best(clients, *kinds):
    """Returns the best of seven runs of each kind, in turns: on a shared machine disturbances only slow down."""
    rounds = [[run(clients, bodies) for bodies in kinds] for _ in range(7)]
    return [max(speeds) for speeds in zip(*rounds)]


def speed():
    layouts = [
        (f"{name}, {layout}", [{"max_tokens": 300, "json_whitespace": layout, "guided_json": schema}])
        for name, schema in SCHEMAS.items()
        for layout in ("natural", "compact")
    ]
    layouts.append(("mixed", [body for _, bodies in layouts for body in bodies]))
    for clients in (1, 8):
        for name, bodies in layouts:
            free, plain, jumping = best(
                clients,
                [{"max_tokens": 100, "ignore_eos": True}],
                [{**body, "jump_forward": False} for body in bodies],
                [{**body, "jump_forward": True} for body in bodies],
            )
            print(
                f"{clients} clients, {name}: free {free:.0f} tok/s; {plain / free:.2f}x of it "
                f"without jump-forward, {jumping / free:.2f}x with: {jumping / plain:.2f}",
                flush=True,
            )


def times(body):
    """Returns the times at which the request was sent and at which each text of its stream arrived."""
    stamps = [time.perf_counter()]
    with opened({**body, "stream": True}) as answer:
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                stamps.append(time.perf_counter())
    return stamps


def first():
    schema = {"max_tokens": 30, "guided_json": SCHEMAS["long strings"]}
    free = {"max_tokens": 30, "ignore_eos": True}
    waits = {"with a schema": [], "without": []}
    for number in range(201):
        for name, body in zip(waits, (schema, free)):
            sent, came = times(body)[:2]
            if number:
                waits[name].append((came - sent) * 1e3)
    for name, all in waits.items():
        low, middle, high = statistics.quantiles(all, n=4)
        print(f"first text {name}: {middle:.2f} ms ({low:.2f} to {high:.2f})")
    more = [a - b for a, b in zip(*waits.values())]
    print(f"difference: {statistics.median(more):.2f} ms, p90 {statistics.quantiles(more, n=10)[-1]:.2f}")


def bad(number):
    null = {"type": "null"}
    properties = lambda count: {f"p{number}_{i}": null for i in range(count)}
    return [
        {"regex": f"a{{{1_000_000 + number}}}"},
        {"regex": rf"(x{number}|b)*a(a|b){{30}}\b\B"},
        {"guided_json": {"properties": properties(10_000)}},
        {"guided_json": {"enum": list(range(number, number + 50_000))}},
        {"guided_json": {"patternProperties": properties(300)}},
        {"guided_json": {"allOf": [{"type": "string", "pattern": f"a{i}_{number}.*b"} for i in range(30)]}},
        {"guided_json": {"not": {"const": number}}},
        {"ebnf": "root ::= " + "(" * 9000 + f'"{number}"' + ")" * 9000},
    ][number % 8]


def abuse():
    gaps = {"alone": [], "beside 64 bad grammars": []}
    slowest = []

    def refused(number):
        start = time.perf_counter()
        try:
            opened(bad(number))
        except urllib.error.HTTPError as error:
            assert error.code == 400, error.read()
        slowest.append(time.perf_counter() - start)

    for round in range(20):
        for name in gaps:
            threads = []
            if name != "alone":
                threads = [threading.Thread(target=refused, args=(round * 64 + i,)) for i in range(64)]
            [thread.start() for thread in threads]
            stamps = times({"max_tokens": 400, "ignore_eos": True})[1:]
            gaps[name] += [(b - a) * 1e3 for a, b in zip(stamps, stamps[1:])]
            [thread.join() for thread in threads]
    for name, all in gaps.items():
        cuts = statistics.quantiles(all, n=100)
        print(f"gaps {name}: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f}, most {max(all):.1f}")
    print(f"the slowest refusal took {max(slowest):.2f} s")


for part in PARTS:
    {"speed": speed, "first": first, "abuse": abuse}[part]()
