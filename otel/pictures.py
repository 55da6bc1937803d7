#!/usr/bin/env python3
"""Draws the pictures of the README and of docs/OBSERVABILITY.md from the records of a run.

    python otel/pictures.py record   # runs a server, Prometheus and a collector; writes otel/pictures/*.json
    python otel/pictures.py draw     # draws otel/pictures/*.svg from these files

`record` needs target/release/{hearth,hearth-load}, Debian's prometheus beside $HEARTH_PROMTOOL, and
the Python environment of the tests. It sends a streamed chat to a server with detailed traces. Then
it sends load from more and more clients to a server that runs 16 requests at a time, while
Prometheus scrapes it and answers the queries of otel/dashboards/hearth.json.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "otel/pictures"
RUNNING, CLIENTS, SECONDS = 16, [2, 4, 8, 16, 32, 64, 128], 12
PANELS = ["Requests", "Tokens per second", "Time to first token", "Time between tokens",
          "Where the time goes (mean)", "Time of a step (mean)", "Hit rate", "KV slots"]
SATURATION = {
    "throughput": "sum(rate(llm_generation_tokens_total[5s]))",
    "busy": "sum(rate(llm_engine_step_execute_time_seconds_sum[5s]))",
    "saturation": "(sum(llm_num_requests_running) + sum(llm_num_requests_waiting)) / sum(llm_max_num_requests_running)",
    "first": "histogram_quantile(0.5, sum by (le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[5s])))",
}


# Recording.

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def wait_for(url, process):
    while True:
        try:
            return ask(url)
        except OSError:
            assert process.poll() is None, f"what should be at {url} has ended"
            time.sleep(0.1)


def serve(*flags):
    port = free_port()
    command = [ROOT / "target/release/hearth", "serve", "--device", "cpu", "--port", str(port), "--log-level", "warn"]
    process = subprocess.Popen([*command, *flags])
    wait_for(f"http://127.0.0.1:{port}/ready", process)
    return process, f"http://127.0.0.1:{port}"


def record_trace():
    # The output goes to a file, because writes to a full pipe would block.
    got = pathlib.Path(tempfile.mkdtemp()) / "got"
    receiver = subprocess.Popen([sys.executable, ROOT / "tests/python/otlp_receiver.py"],
                                stdin=subprocess.PIPE, stdout=got.open("w"))
    while not got.read_text().endswith("\n"):
        time.sleep(0.05)
    ports = json.loads(got.read_text())
    server, url = serve("--otlp-endpoint", f"http://127.0.0.1:{ports['http']}", "--collect-detailed-traces", "all",
                        "--max-batch-tokens", "64")
    chat = {"stream": True, "max_tokens": 24, "temperature": 0, "ignore_eos": True,
            "messages": [{"role": "user", "content": "Tell me a story about a fox. " * 8}]}
    # The first chat is slower than later ones, because pages are cold and threads are idle.
    ask(f"{url}/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": "Hello"}]})
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    ask(f"{url}/v1/chat/completions", chat, caller)
    server.terminate()
    server.wait()
    receiver.stdin.close()
    receiver.wait()
    spans = [line for line in map(json.loads, got.read_text().splitlines()[1:]) if line["signal"] == "span"]
    request = next(s for s in spans if s["name"] == "llm_request" and s["trace"] == "0af7651916cd43dd8448eb211c80319c")
    linked = [s for s in spans if any(link["id"] == request["id"] for link in s["links"])]
    steps = {s["trace"] for s in sorted(linked, key=lambda s: s["start"])}
    keep = [s for s in spans if s["trace"] == request["trace"] or s["trace"] in steps]
    for span in keep:
        del span["resource"], span["signal"], span["how"]
    (OUT / "trace.json").write_text(lines(sorted(keep, key=lambda s: (s["start"], -s["end"]))))


def record_run():
    server, url = serve("--max-running-requests", str(RUNNING))
    port, directory = free_port(), pathlib.Path(tempfile.mkdtemp())
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
              "scrape_configs": [{"job_name": "hearth", "static_configs": [{"targets": [url.removeprefix("http://")]}]}]}
    (directory / "prometheus.yml").write_text(json.dumps(config))
    binary = pathlib.Path(os.environ["HEARTH_PROMTOOL"]).with_name("prometheus")
    prometheus = subprocess.Popen([binary, f"--config.file={directory}/prometheus.yml",
                                   f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"],
                                  stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}/-/ready", prometheus)
    time.sleep(3)
    start, phases = time.time(), []
    for clients in CLIENTS:
        began = time.time()
        load = subprocess.Popen([ROOT / "target/release/hearth-load", "--url", url, "--concurrency", str(clients),
                                 "--requests", "100000", "--prompt-tokens", "64", "--shared-prefix", "64",
                                 "--output-tokens", "64", "--seed", str(clients)], stdout=subprocess.DEVNULL)
        time.sleep(SECONDS)
        load.terminate()
        load.wait()
        phases.append({"clients": clients, "from": began - start, "to": time.time() - start})
    end = time.time()

    def range_of(query):
        query = query.replace("$__rate_interval", "5s").replace("$model", ".*").replace("$instance", ".*")
        asked = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": "1"})
        answer = json.loads(ask(f"http://127.0.0.1:{port}/api/v1/query_range?{asked}"))
        assert answer["status"] == "success", answer
        return [(one["metric"], [[round(float(t) - start, 1), float(f"{float(v):.4g}")] for t, v in one["values"]
                                 if v != "NaN"]) for one in answer["data"]["result"]]

    panels = []
    dashboard = json.loads((ROOT / "otel/dashboards/hearth.json").read_text())
    for panel in sorted((p for p in dashboard["panels"] if p["title"] in PANELS), key=lambda p: PANELS.index(p["title"])):
        series = []
        for target in panel["targets"]:
            for metric, points in range_of(target["expr"]):
                name = re.sub(r"\{\{(\w+)\}\}", lambda m: metric.get(m[1], ""), target["legendFormat"])
                series.append({"name": name, "points": points})
        panels.append({"title": panel["title"], "unit": panel["fieldConfig"]["defaults"]["unit"], "series": series})
    saturation = {name: range_of(query)[0][1] for name, query in SATURATION.items()}
    prometheus.kill()
    server.kill()
    (OUT / "run.json").write_text(lines({"phases": phases, "saturation": saturation, "panels": panels}))


def lines(value):
    """JSON with one line per item or member."""
    write = lambda item: json.dumps(item, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(write(item) for item in value) + "\n]\n"
    return "{\n" + ",\n".join(f"{write(key)}:{write(item)}" for key, item in value.items()) + "\n}\n"


# Drawing.

COLOURS = ["#2f6fb7", "#d9822b", "#3d9a5f", "#b5453c", "#7a5bb0", "#777777"]


def text(x, y, words, size=11, anchor="start", colour="#333", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(str(words))}</text>')


def page(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
            f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")


def shown(value, unit):
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value / 1e3:.3g}k" if value >= 1000 else f"{value:.3g}"


def plot(parts, box, title, series, unit, phases, top=None):
    """A panel with lines over time, and a grey rule at each change of the number of clients."""
    x, y, width, height = box
    last = phases[-1]["to"]
    top = top or max([v for s in series for _, v in s["points"]] + [1e-9]) * 1.08
    at = lambda t, v: f"{x + width * t / last:.1f},{y + height - height * min(v, top) / top:.1f}"
    parts.append(text(x, y - 10, title, 12, weight="bold"))
    for part in (0, 0.5, 1):
        level = y + height - height * part
        parts.append(f'<path d="M{x} {level:.1f}h{width}" stroke="#ddd"/>')
        parts.append(text(x - 6, level + 4, shown(top * part, unit), 10, "end", "#777"))
    for phase in phases:
        left = x + width * phase["from"] / last
        parts.append(f'<path d="M{left:.1f} {y}v{height}" stroke="#bbb" stroke-dasharray="2 3"/>')
        parts.append(text(left + 3, y + height + 13, phase["clients"], 10, colour="#777"))
    legend = x + width
    for index, one in reversed(list(enumerate(series))):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(at(t, v) for t, v in one["points"])
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(text(legend, y - 10, one["name"], 10, "end", colour))
        legend -= 6.4 * len(one["name"]) + 8


def draw_dashboard(run):
    parts, wide, high = [], 400, 120
    for index, panel in enumerate(run["panels"]):
        column, row = index % 2, index // 2
        box = (70 + column * (wide + 90), 34 + row * (high + 64), wide, high)
        plot(parts, box, panel["title"], panel["series"], panel["unit"], run["phases"])
    height = 34 + (len(run["panels"]) + 1) // 2 * (high + 64)
    parts.append(text(70, height - 6, f"below each panel: clients at a time; {RUNNING} requests run at most", 10, colour="#777"))
    return page(2 * (wide + 90) + 20, height + 6, parts)


def draw_saturation(run):
    parts, got = [], run["saturation"]
    for index, (title, name, unit, limit) in enumerate([
        ("Tokens generated per second", "throughput", "short", None),
        ("The engine executes: part of the time (busy)", "busy", "percentunit", None),
        ("Saturation: running and waiting requests, of the most that may run", "saturation", "short", 1),
        ("Time to first token, median", "first", "s", None),
    ]):
        box = (80, 34 + index * 150, 760, 92)
        plot(parts, box, title, [{"name": "", "points": got[name]}], unit, run["phases"])
        if limit:
            top = max(v for _, v in got[name]) * 1.08
            level = box[1] + box[3] - box[3] * limit / top
            parts.append(f'<path d="M80 {level:.1f}h760" stroke="#b5453c"/>')
            parts.append(text(840, level - 4, "1: from here on requests wait", 10, "end", "#b5453c"))
    parts.append(text(80, 34 + 4 * 150 - 20, f"below each plot: clients at a time; {RUNNING} requests run at most", 10, colour="#777"))
    return page(870, 34 + 4 * 150 - 8, parts)


def draw_trace(spans):
    request = [s for s in spans if s["trace"] == "0af7651916cd43dd8448eb211c80319c"]
    steps = [s for s in spans if s["trace"] != "0af7651916cd43dd8448eb211c80319c"]
    roots = [s for s in steps if s["name"] == "engine.step"]
    chosen = {s["trace"] for s in roots[:6]}
    depth, rows = {}, []
    for span in request + [s for s in steps if s["trace"] in chosen]:
        level = depth.get(span["parent"], -1) + 1
        depth[span["id"]] = level
        rows.append((level, span))
    start, end = request[0]["start"], request[0]["end"]
    # A step can begin before the request that it computes entered the queue.
    left, width, parts = 270, 520, [text(12, 22, "One chat request, and the first six steps of the engine that it took part in", 13, weight="bold")]
    scale = width / (end - start)
    y = 44
    colours = {"llm_request": 1, "tokenize": 5, "queue": 3, "prefill": 2, "decode": 4, "detokenize": 5,
               "engine.step": 0, "scheduler": 3, "execute": 1, "forward": 2}
    for level, span in rows:
        if span["name"] == "engine.step":
            y += 6
        x = left + (span["start"] - start) * scale
        long = max((span["end"] - span["start"]) * scale, 0.8)
        parts.append(text(12 + 14 * level, y + 10, span["name"], 11))
        parts.append(text(left - 12, y + 10, f"{(span['end'] - span['start']) / 1e6:.3f} ms", 10, "end", "#777"))
        colour = COLOURS[colours.get(span["name"], 0)]
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="12" fill="{colour}" rx="1.5"/>')
        for event in span["events"]:
            at = left + (event["at"] - start) * scale
            parts.append(f'<path d="M{at:.1f} {y - 2}v16" stroke="#000" stroke-width="1.5"/>')
            parts.append(text(at + 4, y + 10, event["name"], 10))
        y += 18
    for tenth in range(0, 11, 2):
        x = left + width * tenth / 10
        parts.append(f'<path d="M{x:.1f} 36V{y}" stroke="#ddd"/>')
        parts.append(text(x, y + 14, f"{(end - start) / 1e7 * tenth:.2f}", 10, "middle", "#777"))
    parts.append(text(left + width + 10, y + 14, "ms", 10, colour="#777"))
    return page(left + width + 40, y + 24, parts)


def draw():
    run = json.loads((OUT / "run.json").read_text())
    (OUT / "dashboard.svg").write_text(draw_dashboard(run))
    (OUT / "saturation.svg").write_text(draw_saturation(run))
    (OUT / "trace.svg").write_text(draw_trace(json.loads((OUT / "trace.json").read_text())))


OUT.mkdir(exist_ok=True)
if sys.argv[1] == "record":
    record_trace()
    record_run()
else:
    draw()
