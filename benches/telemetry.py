#!/usr/bin/env python3
"""Measures the cost of telemetry: servers with and without it, loaded in turns, and long runs of requests.

    python benches/telemetry.py cost [ROUNDS [SEQUENCES [LEVELS]]]  # 12 rounds, 64 at a time, off,none,control,on,detailed
    python benches/telemetry.py scrape [SCRAPES]   # time of a scrape, by format
    python benches/telemetry.py growth [REQUESTS]  # memory over many requests of one token

It needs target/release/{hearth,hearth-load} (or HEARTH_BIN, HEARTH_LOAD), and rotel from PyPI in the Python
that runs it. rotel is the collector, which accepts everything and keeps nothing.

"none" records nothing (--disable-metrics). "off" pushes nothing, logs no statistics and is not scraped. "on"
has every set of names, OTLP with a trace for each request, and a scrape each second. "detailed" adds a trace
for each step. "control" is a second "off": the difference between the two is the error of the measurement,
caused for example by the addresses of a process's memory, which is why the servers are started anew every two
rounds. All servers are up all the time and one at a time is loaded, so that other work of the machine affects
all of them alike. Each has the same second of rest after its load, and their order is drawn by lot. CPU time is
the server's own; the CPU time of the threads that only telemetry has, and that of the collector, are given
separately. Ratios are of neighbours, to the first level given: `cost 60 64 none,on` compares two levels in less
time. Their medians have intervals of 95 % (bootstrap over the sets of servers).

The model's threads take most of the CPU time and vary by more than telemetry costs, and telemetry does nothing
there. So the last lines compare the other threads: their difference, as a share of the whole server's CPU time,
has a smaller error than a ratio of throughputs. An effect on the model's threads, for example through the
processor's caches, is only in the ratios.
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
LEVELS = "off,none,control,on,detailed"
PUSHING = ["on", "detailed"]
# The number of rounds for which a set of servers lives; the first round warms up.
LIFE = 3
RESAMPLES = 2000


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


def load(port, requests, seed, sequences=64):
    shape = ["--concurrency", str(sequences), "--prompt-tokens", "64", "--output-tokens", "64", "--warmup", "0"]
    command = [LOAD, "--url", f"http://127.0.0.1:{port}", "--json", "--requests", str(requests),
               "--seed", str(seed), *shape]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def spread(numbers):
    low, middle, high = statistics.quantiles(numbers, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def estimate(lives, scale=1):
    """The median with its interval of 95 %. Whole sets of servers are drawn, because the rounds of a set depend on each
    other."""
    draw = random.Random(1)
    medians = sorted(statistics.median(sum(draw.choices(lives, k=len(lives)), [])) for _ in range(RESAMPLES))
    low, high = medians[RESAMPLES // 40], medians[-RESAMPLES // 40]
    return f"{scale * statistics.median(sum(lives, [])):.4f} [{scale * low:.4f}, {scale * high:.4f}]"


def cpu_us(pid, of_thread=lambda name: True):
    """Returns the CPU time of the threads that exist now, in microseconds."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if of_thread((task / "comm").read_text()):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


def of_telemetry(name):
    return name.startswith(("hearth-telemetr", "OpenTelemetry", "hearth-otlp"))


def of_engine(name):
    return name.startswith("hearth-engine")


def not_of_model(name):
    return not name.startswith(("hearth-cpu-", "hearth-device"))


def measured(level, server, rotel, seed, requests, sequences):
    """Measures one load and the rest after it, because work that was deferred is part of the cost; spans are
    sent within five seconds."""
    process, port = server
    over = threading.Event()

    def scrape():
        while not over.wait(1):
            get(port)

    scraper = threading.Thread(target=scrape)

    def times():
        of_threads = [cpu_us(process.pid, which) for which in (of_telemetry, of_engine, not_of_model)]
        return [cpu_us(process.pid), *of_threads, cpu_us(rotel.pid)]

    before = times()
    if level in PUSHING:
        scraper.start()
    result = load(port, requests, seed, sequences)
    time.sleep(1)
    over.set()
    if level in PUSHING:
        scraper.join()
    after = times()
    assert result["failed"] == 0, result
    tokens = result["output_tokens"]
    whole, own, engine, others, collecting = [(b - a) / tokens for a, b in zip(before, after)]
    return {
        "tokens/s": result["output_tokens_per_s"],
        "ITL p99 ms": result["itl_ms"]["p99"],
        "CPU us/token": whole,
        "of it telemetry's threads": own,
        "the engine's thread": engine,
        "all but the model's": others,
        "collector's us/token": collecting,
    }


def cost(rounds, sequences="64", levels=LEVELS):
    levels, sequences = levels.split(","), int(sequences)
    base, requests = levels[0], max(64, 4 * sequences)
    rotel, endpoint = collector()
    # For each level the runs of each set of servers.
    lives = {level: [] for level in levels}
    dropped = dict.fromkeys(levels, 0)
    try:
        for begin in range(0, rounds, LIFE - 1):
            servers = {level: serve(level, endpoint) for level in levels}
            try:
                for level, (_, port) in servers.items():
                    lives[level].append([])
                    load(port, max(16, sequences), begin, sequences)
                for number in range(1, LIFE):
                    for level in random.sample(levels, len(levels)):
                        run = measured(level, servers[level], rotel, begin + number, requests, sequences)
                        lives[level][-1].append(run)
                        print(level, json.dumps(run), file=sys.stderr)
                for level, (_, port) in servers.items():
                    if level != "none":
                        dropped[level] += value(get(port), "hearth_telemetry_dropped_total")
            finally:
                for process, _ in servers.values():
                    process.kill()
                    process.wait()
        report(lives, base, sequences)
        print("dropped", dropped)
    finally:
        rotel.kill()


def report(lives, base, sequences):
    def compared(level, of_runs):
        pairs = zip(lives[level], lives[base])
        return [[of_runs(run, other) for run, other in zip(life, others)] for life, others in pairs]

    names = list(lives[base][0][0])
    count = sum(map(len, lives[base]))
    print(f"{count} rounds, {sequences} at a time: medians (quartiles); ratios to {base} [95 % of the median]")
    for name in names:
        for level in lives:
            line = f"{name:25} {level:9} {spread([run[name] for life in lives[level] for run in life])}"
            if name in names[:3] and level != base:
                line += f"  ratio {estimate(compared(level, lambda run, other: run[name] / other[name]))}"
            print(line)
    print(f"differences to {base} [95 % of the median]")
    for level in [level for level in lives if level != base]:
        engine = compared(level, lambda run, other: run["the engine's thread"] - other["the engine's thread"])
        share = compared(level, lambda run, other: (run["all but the model's"] - other["all but the model's"])
                         / other["CPU us/token"])
        print(f"{level:9} the engine's thread, ns a token: {estimate(engine, 1000)}; "
              f"all but the model's threads, % of the server's CPU: {estimate(share, 100)}")


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
run(int(sys.argv[2]) if len(sys.argv) > 2 else count, *sys.argv[3:])
