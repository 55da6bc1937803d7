"""Measures the cost of a streamed token on the way to its client: Hearth beside FastAPI on uvicorn, both
without a model, in turns.

    cargo build --release --workspace --examples --bins
    python benches/http_cost.py [ROUNDS]

Run it with a Python that has fastapi and uvicorn[standard]; it prints two tables. In the first the model
answers at once, and only the server's own CPU time counts, not that of the load generator or of other
programs. It is given for the whole process, and without the engine's two threads: one of them schedules and
samples, the other is the model, and FastAPI's server has no counterpart of either. In the second the model
gives each stream a token every 20 ms: any longer time between two tokens is caused by the server (or by the
machine, or by the load generator).
"""

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
HERE = Path(__file__).parent
RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "release"
PORT = 8932
BEAT_MS = 20
# (streams at once, requests, tokens of each request)
AT_ONCE = [(1, 40, 512), (64, 256, 512), (512, 2048, 128)]
AT_A_BEAT = [(1, 2, 128), (64, 128, 128), (512, 1024, 64)]


def servers(beat_ms):
    return {
        "fastapi": [sys.executable, HERE / "peers" / "fastapi_instant.py", PORT, beat_ms],
        "hearth": [RELEASE / "examples" / "instant", "--port", PORT, "--beat-ms", beat_ms],
    }


ENGINE = ["hearth-engine", "hearth-device"]


def cpu_seconds(pid):
    """Returns the CPU seconds of all threads, and of those that are not the engine's."""
    whole = others = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        stat = (task / "stat").read_text()
        name, rest = stat.split("(", 1)[1].rsplit(")", 1)
        fields = rest.split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        whole += used
        others += 0 if name in ENGINE else used
    return whole, others


def measure(command, shapes):
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models").read()
                break
            except OSError:
                time.sleep(0.1)
        for streams, requests, tokens in shapes:
            before = cpu_seconds(server.pid)
            load = [
                RELEASE / "hearth-load", "--url", f"http://127.0.0.1:{PORT}", "--json",
                "--concurrency", streams, "--requests", requests, "--prompt-tokens", 16,
                "--output-tokens", tokens,
            ]
            report = json.loads(subprocess.check_output(list(map(str, load))))
            after = cpu_seconds(server.pid)
            assert report["failed"] == 0, report
            per_core = [requests * tokens / (b - a) for a, b in zip(before, after)]
            yield streams, per_core, report
    finally:
        server.kill()
        server.wait()


def rounds(beat_ms, shapes):
    found = {}
    for _ in range(ROUNDS):
        for name, command in servers(beat_ms).items():
            for streams, per_core, report in measure(command, shapes):
                figures = {
                    "tokens / s / core": per_core[0],
                    "the same but for the engine's threads": per_core[1],
                    "ITL p50, ms": report["itl_ms"]["p50"],
                    "ITL p99, ms": report["itl_ms"]["p99"],
                    "TTFT p99, ms": report["ttft_ms"]["p99"],
                    "tokens / s": report["output_tokens_per_s"],
                }
                for figure, value in figures.items():
                    found.setdefault((streams, figure, name), []).append(value)
    return found


def table(title, found, figures):
    print(f"\n{title}\n\n| streams | figure | fastapi | hearth | ratio |\n|---|---|---|---|---|")
    for streams in sorted({key[0] for key in found}):
        for figure in figures:
            theirs, ours = (statistics.median(found[streams, figure, name]) for name in servers(0))
            ratio = theirs / ours if figure.endswith("ms") else ours / theirs
            print(f"| {streams} | {figure} | {theirs:,.2f} | {ours:,.2f} | {ratio:.1f} |")


table("at once", rounds(0, AT_ONCE),
      ["tokens / s / core", "the same but for the engine's threads", "tokens / s", "TTFT p99, ms"])
table(f"a token every {BEAT_MS} ms", rounds(BEAT_MS, AT_A_BEAT),
      ["tokens / s", "ITL p50, ms", "ITL p99, ms", "TTFT p99, ms"])
