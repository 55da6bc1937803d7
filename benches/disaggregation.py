"""Measures prefill/decode disaggregation on one machine: transfers beside the loopback's own rate, and TTFT and ITL of
short streams while long prompts arrive, with one process and with a pair behind `hearth router`.

    python benches/disaggregation.py target/release/hearth --model benches/models/smol-135m --load-format dummy
"""

import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

import requests

BINARY, FLAGS = sys.argv[1], sys.argv[2:]
LONG, SHORT, STREAM = 1024, 32, 64


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(arguments, ready):
    process = subprocess.Popen([BINARY, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if requests.get(ready, timeout=5).ok:
                return process
        except requests.ConnectionError:
            pass
        time.sleep(0.05)
    process.kill()
    sys.exit(f"{arguments} is not ready")


def serve(*arguments):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = start(["serve", *FLAGS, "--device", "cpu", "--port", str(port), *arguments], url + "/ready")
    return process, url


def loopback():
    """Gigabytes a second through a TCP connection of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    block, total = bytes(4 << 20), 1 << 30

    def send():
        with socket.create_connection(listener.getsockname()) as out:
            for _ in range(total // len(block)):
                out.sendall(block)

    thread = threading.Thread(target=send)
    started = time.perf_counter()
    thread.start()
    connection, _ = listener.accept()
    buffer, left = bytearray(4 << 20), total
    while left > 0:
        left -= connection.recv_into(buffer)
    thread.join()
    return total / (time.perf_counter() - started) / 1e9


def stream(url, tokens, length, seed):
    """TTFT, and the times between the pieces of the stream, in seconds."""
    prompt = random.Random(seed).choices(range(100, 5000), k=tokens)
    body = {"input_ids": prompt, "stream": True,
            "sampling_params": {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}}
    started = last = time.perf_counter()
    first, gaps = None, []
    with requests.post(url + "/generate", json=body, stream=True, timeout=300) as answer:
        assert answer.status_code == 200, answer.text
        for line in answer.iter_lines():
            if not line or line == b"data: [DONE]":
                continue
            now = time.perf_counter()
            if first is None:
                first = now - started
            else:
                gaps.append(now - last)
            last = now
    return first, gaps


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def milliseconds(values):
    return f"{1e3 * statistics.median(values):.1f}, {1e3 * percentile(values, .95):.1f}, {1e3 * max(values):.1f}"


def alone(url, seed):
    return statistics.median(stream(url, LONG, 1, seed + number)[0] for number in range(5))


def transferred(router_url, decode_url, seed):
    """Seconds that a prompt takes longer if the decode server must pull its KV, which is cached at the prefill server."""
    cached, pulled = [], []
    for number in range(10):
        stream(router_url, LONG, 1, seed + number)
        cached.append(stream(router_url, LONG, 1, seed + number)[0])
        requests.post(decode_url + "/flush_cache", json={}, timeout=60).raise_for_status()
        pulled.append(stream(router_url, LONG, 1, seed + number)[0])
    return statistics.median(pulled) - statistics.median(cached)


def mixed(url, seed):
    """Four streams of short prompts, while a long prompt arrives every second."""
    firsts, gaps, longs, over = [], [], [], threading.Event()

    def short(number):
        count = 0
        while not over.is_set():
            first, own = stream(url, SHORT, STREAM, seed + 1000 * number + count)
            firsts.append(first)
            gaps.extend(own)
            count += 1

    threads = [threading.Thread(target=short, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for number in range(20):
        longs.append(stream(url, LONG, 1, seed + 100_000 + number)[0])
        time.sleep(1)
    over.set()
    for thread in threads:
        thread.join()
    return longs, firsts, gaps


def stat(url, name):
    return requests.get(url + "/server_info", timeout=60).json()["internal_states"][0][name]


rate = loopback()
print(f"loopback: {rate:.2f} GB/s")
one, one_url = serve()
bootstrap = free_port()
prefill, prefill_url = serve("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(bootstrap))
decode, decode_url = serve("--disaggregation-mode", "decode")
port = free_port()
router_url = f"http://127.0.0.1:{port}"
router = start(["router", "--pd-disaggregation", "--prefill", prefill_url, str(bootstrap), "--decode", decode_url,
                "--port", str(port), "--prometheus-port", "none"], router_url + "/readiness")
try:
    size = stat(decode_url, "kv_token_bytes")
    for name, url in [("one process", one_url), ("pair behind the router", router_url)]:
        print(f"TTFT of {LONG} tokens, nothing else running, {name}: {1e3 * alone(url, 1):.1f} ms")
    print(f"KV of {LONG} tokens: {LONG * size / 1e6:.1f} MB, {1e3 * LONG * size / rate / 1e9:.1f} ms at the loopback's rate")
    seconds = transferred(router_url, decode_url, 10_000)
    own = LONG * size / seconds / 1e9
    print(f"transfer of KV that prefill has cached: {1e3 * seconds:.1f} ms, {own:.2f} GB/s, {own / rate:.2f} of loopback")
    for name, url in [("one process", one_url), ("pair behind the router", router_url)]:
        longs, firsts, gaps = mixed(url, 50)
        print(f"mixed, {name}: p50, p95, max in ms: TTFT of long prompts {milliseconds(longs)}; "
              f"TTFT of short prompts {milliseconds(firsts)}; ITL {milliseconds(gaps)}; {len(gaps)} tokens")
    print(json.dumps({"received_tokens": stat(decode_url, "received_tokens")}))
finally:
    for process in [router, one, prefill, decode]:
        process.kill()
