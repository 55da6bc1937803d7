"""Tests smg, the successor of SGLang's router, in front of two running Hearth servers, end to end.

    python smg_router.py http://127.0.0.1:8001 MODEL http://127.0.0.1:8002

The served model has random weights; its tokens are bytes, and its context is 2048 tokens.
"""

import re
import subprocess
import sys
import time
from importlib.metadata import version

import requests
from routed import assert_same_as_direct, free_port
from running import run

FIRST, MODEL, SECOND = sys.argv[1:4]
WORKERS = [FIRST, SECOND]


class Router:
    """smg with one policy, while the block runs."""

    def __init__(self, policy):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smg.launch_router", "--host", "127.0.0.1", "--port", str(port),
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
             "--policy", policy, "--load-monitor-interval", "1", "--worker-urls", *WORKERS],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    def __enter__(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                workers = self.workers()
                if len(workers) == 2 and all(worker["is_healthy"] for worker in workers):
                    return self
            except (requests.ConnectionError, KeyError, ValueError):
                pass
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError("smg never saw two healthy workers")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def workers(self):
        return requests.get(self.url + "/workers", timeout=5).json()["workers"]

    def loads(self):
        return requests.get(self.url + "/get_loads", timeout=5).json()["loads"]


def loads_statuses(worker):
    """How often the worker answered `/v1/loads`, by status."""
    page = requests.get(worker + "/metrics", timeout=60).text
    rows = re.findall(r'^http_requests_total\{(.*)\} ([0-9.]+)$', page, re.MULTILINE)
    counts = {}
    for labels, count in rows:
        if 'handler="/v1/loads"' in labels:
            (status,) = re.findall(r'status="(\w+)"', labels)
            counts[status] = counts.get(status, 0) + float(count)
    return counts


def follows(policy):
    with Router(policy) as router:
        for worker in router.workers():
            assert worker["runtime_type"] == "sglang", worker
            assert worker["model_id"] == MODEL, worker
            assert worker["connection_mode"] == "http", worker
        loads = router.loads()
        deadline = time.monotonic() + 30
        # It asks its workers one after the other.
        while len(loads) < len(WORKERS) and time.monotonic() < deadline:
            time.sleep(0.2)
            loads = router.loads()
        assert sorted(load["worker"] for load in loads) == sorted(WORKERS), loads
        for load in loads:
            assert load["max_total_num_tokens"] > 0 and load["max_running_requests"] > 0, load
            assert load["memory"]["token_capacity"] == load["max_total_num_tokens"], load
            assert load["memory"]["kv_cache_gb"] > 0 and load["queues"]["waiting"] == 0, load
        assert_same_as_direct(router.url, FIRST, MODEL)
        for worker in WORKERS:
            statuses = loads_statuses(worker)
            assert set(statuses) == {"2xx"} and statuses["2xx"] > 0, statuses


def test_cache_aware():
    follows("cache_aware")


def test_least_load():
    follows("least_load")


if __name__ == "__main__":
    run(globals(), f"smg {version('smg')}")
