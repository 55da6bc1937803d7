#!/usr/bin/env python3
"""Measures for gpu.sh how long a server of random weights takes for its first and its second start, and how
it serves many clients at once. It needs only the standard library. After each part it prints a JSON object
with all figures so far, so that the last object of the output is the result.

  gpu_http.py HEARTH HEARTH_LOAD MODEL_DIR DEVICE DTYPE CLIENTS REQUESTS PROMPT OUTPUT LOG
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

hearth, load, model, device, dtype = sys.argv[1:6]
clients, requests, prompt, output = map(int, sys.argv[6:10])
log = open(sys.argv[10], "w")
with open(os.path.join(model, "config.json")) as config:
    vocab = json.load(config)["vocab_size"]
known = {}
# When a step takes too long, gpu.sh ends this script, and the server must end with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("took too long"))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A running server that keeps compiled kernels in `cache` and nowhere else."""

    def __init__(self, cache):
        self.url = f"http://127.0.0.1:{free_port()}"
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "CUDA_CACHE_PATH": os.path.join(cache, "cuda")}
        started = time.monotonic()
        self.process = subprocess.Popen(
            [hearth, "serve", "--model", model, "--load-format", "dummy", "--device", device, "--dtype", dtype,
             "--no-autotune", "--port", self.url.rpartition(":")[2], "--max-running-requests", str(clients),
             "--max-queue", str(requests), "--max-model-len", str(prompt + output + 64), "--log-level", "info"],
            env=environment, stdout=log, stderr=log)
        try:
            while not self.is_ready():
                if self.process.poll() is not None:
                    sys.exit(f"the server ended with {self.process.returncode}: see {log.name}")
                time.sleep(0.02)
        except BaseException:
            self.process.kill()
            raise
        self.ready_after = time.monotonic() - started

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/ready", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def step_seconds(self):
        """Returns the seconds of the engine's steps by phase, summed since the start."""
        sums = {}
        page = urllib.request.urlopen(f"{self.url}/metrics", timeout=30).read().decode()
        for line in page.splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith("llm_engine_step_") and "_time_seconds_sum" in name:
                sums[name.split("llm_engine_step_")[1].split("_time")[0]] = float(value)
        return sums

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def say(**figures):
    known.update(figures)
    print(json.dumps(known), flush=True)


def idle_share(before, after):
    """Returns the device's idle share of the time with work: 1 - forward / (scheduler + execute)."""
    try:
        forward, scheduler, execute = (after[name] - before.get(name, 0.0) for name in ("forward", "scheduler", "execute"))
        return 1 - forward / (scheduler + execute)
    except (KeyError, ZeroDivisionError):
        return None


with tempfile.TemporaryDirectory() as cache:
    with Server(cache) as server:
        say(first_start_s=server.ready_after)
        for shared in (0, prompt * 3 // 4):
            before = server.step_seconds()
            run = subprocess.run(
                [load, "--url", server.url, "--json", "--concurrency", str(clients), "--requests", str(requests),
                 "--vocab", str(vocab), "--prompt-tokens", str(prompt - shared), "--shared-prefix", str(shared),
                 "--output-tokens", str(output)], stdout=subprocess.PIPE, stderr=log, text=True, check=False)
            figures = json.loads(run.stdout) if run.returncode == 0 else {"error": f"hearth-load: {run.returncode}"}
            say(**{f"shared_{shared}": {**figures, "idle_share": idle_share(before, server.step_seconds())}})
    with Server(cache) as server:
        say(second_start_s=server.ready_after)
