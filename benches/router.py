"""Measures routers in front of one worker, in turns: `hearth router`, sglang-router, and no router at all.

    python benches/router.py target/release/hearth target/release/hearth-load [FLAGS OF hearth serve]

The worker, the routers and the load generator share one machine. The Python needs the package sglang-router.
"""

import json
import socket
import statistics
import subprocess
import sys
import time

import requests

BINARY, LOAD, FLAGS = sys.argv[1], sys.argv[2], sys.argv[3:]
ROUNDS, STREAMS = 3, 64


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(arguments, port, ready):
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(url + ready, timeout=5).ok:
                return process, url
        except requests.ConnectionError:
            pass
        time.sleep(0.05)
    process.kill()
    sys.exit(f"{arguments} is not ready")


def measured(url, requests_in_flight, count, output):
    command = [LOAD, "--url", url, "--concurrency", str(requests_in_flight), "--requests", str(count),
               "--prompts", "words", "--prompt-tokens", "32", "--output-tokens", str(output), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


port = free_port()
worker, direct = start([BINARY, "serve", *FLAGS, "--port", str(port)], port, "/ready")
port = free_port()
ours, our_url = start(
    [BINARY, "router", "--worker-urls", direct, "--port", str(port), "--prometheus-port", "none"], port, "/readiness")
port = free_port()
theirs, their_url = start(
    [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", direct, "--port", str(port),
     "--prometheus-port", str(free_port())], port, "/health")
try:
    time.sleep(2)
    results = {"no router": [], "hearth router": [], "sglang-router": []}
    for _ in range(ROUNDS):
        for name, url in zip(results, [direct, our_url, their_url], strict=True):
            busy = measured(url, STREAMS, 4 * STREAMS, 128)
            idle = measured(url, 1, 100, 4)
            results[name].append((busy, idle))
    for name, rounds in results.items():
        rate = statistics.median(busy["output_tokens_per_s"] for busy, _ in rounds)
        first = statistics.median(idle["ttft_ms"]["p50"] for _, idle in rounds)
        print(f"{name}: {rate:.0f} tokens/s in {STREAMS} streams, TTFT p50 of an idle server {first:.2f} ms")
finally:
    for process in [ours, theirs, worker]:
        process.kill()
