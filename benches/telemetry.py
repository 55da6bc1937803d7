#!/usr/bin/env python3
"""Measures the cost of telemetry: servers with and without it, loaded in turns, and long runs of requests.

    python benches/telemetry.py cost [ROUNDS]      # none, off twice, on and detailed, in alternation
    python benches/telemetry.py scrape [SCRAPES]   # time of a scrape, by format
    python benches/telemetry.py growth [REQUESTS]  # memory over many requests of one token

It needs target/release/{hearth,hearth-load} (or HEARTH_BIN, HEARTH_LOAD), and rotel from PyPI in the Python
that runs it. rotel is the collector, which accepts everything and keeps nothing.

"none" records nothing (--disable-metrics). "off" pushes nothing, logs no statistics and is not scraped. "on"
has every set of names, OTLP with a trace for each request, and a scrape each second. "detailed" adds a trace
for each step. "control" is a second "off": the difference between the two is the error of the measurement,
caused for example by the addresses of a process's memory, which is why the servers are started anew every few
rounds. All servers are up all the time and one at a time is loaded, so that other work of the machine affects
all of them alike. Each has the same second of rest after its load, and their order is drawn by lot. CPU time is
the server's own; the CPU time of the threads that only telemetry has, and that of the collector, are given
separately.
"""

import gzip
import http.client
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HEARTH = os.environ.get("HEARTH_BIN", "target/release/hearth")
LOAD = os.environ.get("HEARTH_LOAD", "target/release/hearth-load")
LEVELS = ["none", "off", "control", "on", "detailed"]
PUSHING = ["on", "detailed"]
# The number of rounds for which a set of servers lives; the first round warms up.
LIFE = 6


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, headers=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers or {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def value(page, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.decode().splitlines() if line.startswith(name))


def collector():
    import rotel

    agent = pathlib.Path(rotel.__file__).with_name("rotel-agent")
    http_port, grpc_port = free_port(), free_port()
    process = subprocess.Popen(
        [agent, "start", "--exporter", "blackhole", "--otlp-http-endpoint", f"127.0.0.1:{http_port}",
         "--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tempfile.mkdtemp(),
    )
    return process, f"http://127.0.0.1:{http_port}"


def serve(level, endpoint=None, extra=()):
    port = free_port()
    flags = ["--device", "cpu", "--port", str(port), *extra]
    if level not in PUSHING:
        flags += ["--log-stats", "off"]
        if level == "none":
            flags += ["--disable-metrics"]
    else:
        flags += ["--metrics-names", "vllm,sglang,otel,plain", "--otlp-endpoint", endpoint]
    if level == "detailed":
        flags += ["--collect-detailed-traces", "all"]
    process = subprocess.Popen([HEARTH, "serve", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).read()
            return process, port
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.05)


def load(port, requests, seed):
    shape = ["--concurrency", "64", "--prompt-tokens", "64", "--output-tokens", "64", "--warmup", "0"]
    command = [LOAD, "--url", f"http://127.0.0.1:{port}", "--json", "--requests", str(requests),
               "--seed", str(seed), *shape]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def spread(numbers):
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def cpu_us(pid, of_thread=lambda name: True):
    """Returns the CPU time of the threads that exist now, in microseconds."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if of_thread((task / "comm").read_text()):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def of_telemetry(name):
    return name.startswith(("hearth-telemetr", "OpenTelemetry", "hearth-otlp"))


def measured(level, server, rotel, seed):
    """Measures one load and the rest after it, because work that was deferred is part of the cost; spans are
    sent within five seconds."""
    process, port = server
    over = threading.Event()

    def scrape():
        while not over.wait(1):
            get(port)

    scraper = threading.Thread(target=scrape)
    before = [cpu_us(process.pid), cpu_us(process.pid, of_telemetry), cpu_us(rotel.pid)]
    if level in PUSHING:
        scraper.start()
    result = load(port, 256, seed)
    time.sleep(1)
    over.set()
    if level in PUSHING:
        scraper.join()
    after = [cpu_us(process.pid), cpu_us(process.pid, of_telemetry), cpu_us(rotel.pid)]
    assert result["failed"] == 0, result
    tokens = result["output_tokens"]
    whole, own, collecting = [(b - a) / tokens for a, b in zip(before, after)]
    return {
        "tokens/s": result["output_tokens_per_s"],
        "ITL p99 ms": result["itl_ms"]["p99"],
        "CPU us/token": whole,
        "of it telemetry's threads": own,
        "collector's us/token": collecting,
    }


def cost(rounds):
    rotel, endpoint = collector()
    runs = {level: [] for level in LEVELS}
    dropped = dict.fromkeys(LEVELS, 0)
    try:
        for begin in range(0, rounds, LIFE - 1):
            servers = {level: serve(level, endpoint) for level in LEVELS}
            try:
                for number in range(LIFE):
                    for level in random.sample(LEVELS, len(LEVELS)):
                        run = measured(level, servers[level], rotel, begin + number)
                        if number and len(runs[level]) < rounds:
                            runs[level].append(run)
                            print(level, json.dumps(run), file=sys.stderr)
                for level, (_, port) in servers.items():
                    if level == "none":
                        continue
                    dropped[level] += value(get(port), "hearth_telemetry_dropped_total")
            finally:
                for process, _ in servers.values():
                    process.kill()
        print(f"{rounds} rounds, medians (quartiles); ratios are of neighbours, to off")
        for name in ["tokens/s", "ITL p99 ms", "CPU us/token"]:
            for level in LEVELS:
                own = [run[name] for run in runs[level]]
                ratios = [run[name] / off[name] for run, off in zip(runs[level], runs["off"])]
                print(f"{name:13} {level:9} {spread(own)}  ratio {spread(ratios)}")
        for name in ["of it telemetry's threads", "collector's us/token"]:
            for level in LEVELS:
                print(f"{name:13} {level:9} {spread([run[name] for run in runs[level]])}")
        print("dropped", dropped)
    finally:
        rotel.kill()


def scrape(scrapes):
    process, port = serve("on", "http://127.0.0.1:9", ["--log-stats", "off"])
    try:
        load(port, 64, 0)
        series = sum(not line.startswith(b"#") for line in get(port).splitlines())
        for name, headers in [
            ("text", {}),
            ("text, gzip", {"accept-encoding": "gzip"}),
            ("OpenMetrics", {"accept": "application/openmetrics-text;version=1.0.0"}),
        ]:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            times, size = [], 0
            for _ in range(scrapes):
                start = time.perf_counter()
                connection.request("GET", "/metrics", headers=headers)
                body = connection.getresponse().read()
                times.append((time.perf_counter() - start) * 1e3)
                size = len(body)
            if "accept-encoding" in headers:
                assert gzip.decompress(body)
            low, middle, high = statistics.quantiles(times, n=4)
            print(f"{name}: {series} series, {size} bytes, ms: least {min(times):.2f}, "
                  f"quartiles {low:.2f} {middle:.2f} {high:.2f}, most {max(times):.2f}")
    finally:
        process.kill()


def growth(requests):
    """Sends `requests` completions of one token, in batches of prompts over several connections."""
    process, port = serve("off", extra=["--metrics-names", "vllm,sglang,otel,plain", "--log-level", "warn",
                                        "--max-queue", "100000"])
    clients, each = 8, 8
    total, lock = [0], threading.Lock()

    def resident():
        return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 2**20

    def client():
        connection = http.client.HTTPConnection("127.0.0.1", port)
        # Each prompt is a request of its own to the engine, the tree and every instrument.
        body = json.dumps({"prompt": [[65 + i % 26, 66] for i in range(each)], "max_tokens": 1, "ignore_eos": True})
        while total[0] < requests:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            with lock:
                total[0] += each

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    shown = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        if total[0] >= shown:
            print(f"{total[0]} requests, {time.monotonic() - start:.0f} s: {resident():.1f} MiB", flush=True)
            shown += requests // 10
    page = get(port)
    ended = value(page, "vllm:request_success_total{")
    print(f"{total[0]} requests, {time.monotonic() - start:.0f} s: {resident():.1f} MiB; "
          f"{ended:.0f} on the page of {len(page)} bytes")
    process.kill()


commands = {"cost": (cost, 12), "scrape": (scrape, 200), "growth": (growth, 1_000_000)}
run, count = commands[sys.argv[1]]
run(int(sys.argv[2]) if len(sys.argv) > 2 else count)
