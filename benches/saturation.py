"""Measures on a real server where `hearth:saturation:ratio` says that it is full, as `hearth-sim saturation` simulates it.

    python benches/saturation.py target/release/hearth [--quick] [--samples FILE]

Requests arrive at rising rates, whether earlier ones have been answered or not: at equal gaps, as a Poisson process,
and as a Poisson process of bursts whose sizes are geometric with mean 6. For each rate it observes the TTFT of every
request, from the time at which it should have been sent, and the ratio of the recording rule (otel/rules/recording.yml),
from /metrics, twenty times a second. Two rates are compared: the highest one at which 95 of 100 first tokens come
within the objective, and the highest one at which the ratio is below 1 in 95 of 100 samples. The definitions are the
simulation's: the second half of a run's arrivals counts, lengths are drawn evenly from half of the mean to one and a
half, and every rate has the same gaps and lengths, in other units of time. Between two rates the shares are
interpolated, after rises with the rate have been averaged away.

Rates are shares of the capacity: the requests a second that the server completes while some always wait. The objective
is a sixth of the time that a request spends in a full server (rows / capacity), because the simulation's objectives are
0.15 and 0.17 of it. The ratios for half and twice the objective come from the same samples.

The default takes at most 12 minutes, --quick one minute, which is too short for a result. The client shares the
machine with the server: once a request has its first token, the client reads the rest of its stream only now and then.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

KEPT = 0.95
BURST = 6
OBJECTIVE = 1 / 6
SAMPLE_S = 0.05
# How often the client reads a stream that has had its first token.
READ_S = 0.05
# How long the measurement of the capacity may take: some CPUs complete three requests of smol-135m a second.
CAPACITY_S = 180
PROCESSES = ["even", "Poisson", "bursts"]
GAUGES = ["llm_num_requests_running", "llm_num_requests_waiting", "llm_max_num_requests_running"]
# Name, flags, mean tokens of prompts and outputs, token ids, seconds of arrivals at capacity, and those of --quick.
# The simulation's 7B has prompts as long as its outputs, too.
MODELS = [
    ("hearth-tiny", [], 64, 64, range(100, 1500), 6, 1),
    ("smol-135m", ["--model", "benches/models/smol-135m", "--load-format", "dummy"], 32, 32, range(100, 49000), 13, 2),
]


class Answer(asyncio.Protocol):
    """A request and the times of its answer."""

    def __init__(self, body, at_first=None):
        self.body, self.begin, self.at_first = body, b"", at_first
        self.loop = asyncio.get_running_loop()
        self.sent = self.first = self.failure = None
        self.over = self.loop.create_future()

    def connection_made(self, transport):
        self.transport, self.sent = transport, self.loop.time()
        transport.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(self.body), self.body))

    def data_received(self, data):
        if self.first is None:
            self.begin += data
            if b"\r\n\r\n" in self.begin and not self.begin.startswith(b"HTTP/1.1 200 "):
                self.failure = self.begin.decode(errors="replace")
                self.transport.close()
            elif b"data: {" in self.begin:
                self.first = self.loop.time()
        if self.first is not None:
            self.transport.pause_reading()
            self.loop.call_later(READ_S, self.read_on)

    def read_on(self):
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, _):
        if not self.over.done():
            self.over.set_result(self.loop.time())


class Server:
    def __init__(self, binary, flags, rows):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        command = [binary, "serve", *flags, "--device", "cpu", "--host", "127.0.0.1", "--port", str(self.port),
                   "--max-running-requests", str(rows), "--metrics-names", "otel", "--log-stats", "off", "--log-level", "warn"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5).read()
                return
            time.sleep(0.05)
        self.stop()
        sys.exit(f"{command} is not ready")

    def stop(self):
        self.process.kill()
        self.process.wait()

    async def send(self, body):
        loop = asyncio.get_running_loop()
        _, answer = await loop.create_connection(lambda: Answer(body), "127.0.0.1", self.port)
        return answer

    async def gauges(self):
        """Returns the values of GAUGES, each summed over its series."""
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            page = await reader.read()
            writer.close()
        return [sum(map(float, re.findall(rb"^%s(?:\{.*\})? (\S+)" % name.encode(), page, re.M))) for name in GAUGES]

    async def ratio(self):
        running, waiting, most = await self.gauges()
        return (running + waiting) / most

    async def idle(self):
        for _ in range(200):
            if await self.ratio() == 0:
                return
            await asyncio.sleep(0.05)
        sys.exit("requests are still there ten seconds after their clients have gone")


def lengths(mean, chance):
    return chance.randint(mean // 2, mean + mean // 2)


class Bodies:
    """Makes requests. No two have a prefix in common, because cached prompts would make later rates cheaper."""

    def __init__(self, ids, seed):
        self.ids, self.chance = ids, random.Random(seed)

    def body(self, prompt, output):
        return json.dumps({"prompt": self.chance.choices(self.ids, k=prompt), "max_tokens": output, "temperature": 0,
                           "ignore_eos": True, "stream": True}).encode()


def schedule(process, count, prompt, output, seed):
    """Returns for each request the time in mean gaps, the tokens of its prompt and those of its output."""
    chance, at, requests = random.Random(seed), 0.0, []
    for _ in range(count):
        if process == "even":
            at += 1
        elif process == "Poisson":
            at += chance.expovariate(1)
        elif chance.random() < 1 / BURST:
            at += chance.expovariate(1) * BURST
        requests.append((at, lengths(prompt, chance), lengths(output, chance)))
    return requests


async def unloaded(server, bodies, prompt):
    """Returns the median TTFT of an idle server."""
    times = []
    for _ in range(9):
        answer = await server.send(bodies.body(prompt, 1))
        await answer.over
        times.append(answer.first - answer.sent)
    return statistics.median(times)


async def capacity(server, bodies, prompt, output, rows, count, seed):
    """Returns the requests a second that are completed while some wait, without the first third of `count` requests."""
    chance, ends, full = random.Random(seed), [], asyncio.Event()

    async def client():
        while True:
            answer = await server.send(bodies.body(lengths(prompt, chance), lengths(output, chance)))
            try:
                ends.append(await answer.over)
            finally:
                answer.transport.abort()
            if answer.failure:
                sys.exit(answer.failure)
            if len(ends) >= count:
                full.set()

    clients = [asyncio.create_task(client()) for _ in range(2 * rows)]
    await asyncio.wait([*clients, asyncio.create_task(full.wait())], timeout=CAPACITY_S, return_when=asyncio.FIRST_COMPLETED)
    for task in clients:
        task.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    if len(ends) < count:
        sys.exit(f"the server completed {len(ends)} of {count} requests in {CAPACITY_S} s")
    await server.idle()
    measured = ends[count // 3:count]
    return (len(measured) - 1) / (measured[-1] - measured[0])


async def observe(server, bodies, requests, rate, patience):
    """Sends requests at a rate. Returns their arrivals, the times to their first tokens (none if it took more than
    `patience` from the last arrival on), how late they were sent, and the samples of the ratio with their times."""
    loop = asyncio.get_running_loop()
    waits = [(at / rate, bodies.body(prompt, output)) for at, prompt, output in requests]
    answers, samples, tasks = [None] * len(waits), [], []
    begin = loop.time() + 0.1

    async def sampled():
        for number in range(1_000_000):
            await asyncio.sleep(begin + number * SAMPLE_S - loop.time())
            ratio = await server.ratio()
            samples.append((loop.time() - begin, ratio))

    async def sent(index, body):
        answers[index] = await server.send(body)

    sampling = asyncio.create_task(sampled())
    for index, (at, body) in enumerate(waits):
        if begin + at > loop.time():
            await asyncio.sleep(begin + at - loop.time())
        tasks.append(asyncio.create_task(sent(index, body)))
    await asyncio.gather(*tasks)
    sampled_to, deadline = loop.time() - begin, loop.time() + patience
    while loop.time() < deadline and any(a.first is None and not a.failure for a in answers):
        await asyncio.sleep(0.01)
    sampling.cancel()
    outcome, = await asyncio.gather(sampling, return_exceptions=True)
    if not isinstance(outcome, asyncio.CancelledError):
        raise outcome
    for answer in answers:
        answer.transport.abort()
    await server.idle()
    arrivals = [at for at, _ in waits]
    return {
        "arrivals": arrivals,
        "ttft": [None if a.first is None else a.first - begin - at for a, at in zip(answers, arrivals, strict=True)],
        "late": [a.sent - begin - at for a, at in zip(answers, arrivals, strict=True)],
        "refused": sum(a.failure is not None for a in answers),
        "samples": [sample for sample in samples if sample[0] <= sampled_to],
    }


def steady(run):
    """The second half of the arrivals, in which the server no longer fills up."""
    return run["arrivals"][len(run["arrivals"]) // 2], run["arrivals"][-1]


def part_in_time(run, objective):
    low, high = steady(run)
    pairs = zip(run["arrivals"], run["ttft"], strict=True)
    times = [ttft for at, ttft in pairs if low <= at < high]
    return statistics.mean(ttft is not None and ttft <= objective for ttft in times)


def part_below_one(run):
    low, high = steady(run)
    return statistics.mean(ratio < 1 for at, ratio in run["samples"] if low <= at < high)


def crossing(points):
    """Returns the rate at which the share falls below KEPT, or none if the rates do not enclose it."""
    pools = []
    for rate, share in sorted(points):
        pools.append([[rate], share])
        while len(pools) > 1 and pools[-2][1] < pools[-1][1]:
            rates, share = pools.pop()
            before = pools[-1]
            both = len(before[0]) + len(rates)
            before[1] = (before[1] * len(before[0]) + share * len(rates)) / both
            before[0] += rates
    line = [(rate, share) for rates, share in pools for rate in rates]
    for (low, above), (high, below) in zip(line, line[1:]):
        if below < KEPT <= above:
            return low + (high - low) * (above - KEPT) / (above - below)
    return None


async def explore(attempt, step, deadline):
    """Tries shares of the capacity: upwards from 0.85 until both conditions fail, and downwards until both hold."""
    start, fails, lowest = round(0.85 / step), 0, 1.0
    for number in range(start, round(1.5 / step) + 1):
        if time.monotonic() > deadline:
            return
        kept, below = await attempt(number * step)
        lowest = min(kept, below) if number == start else lowest
        fails = fails + 1 if max(kept, below) < KEPT else 0
        if fails == 2 or max(kept, below) < 0.8:
            break
    for number in range(start - 1, round(0.3 / step) - 1, -1):
        if lowest >= KEPT or time.monotonic() > deadline:
            return
        lowest = min(await attempt(number * step))


def shown(value, digits):
    return "not reached" if value is None else f"{value:.{digits}f}"


def quotient(one, other):
    return one / other if one and other else None


async def measure(options, model, out, deadline):
    """Measures a model with each process. Returns the lines of the table."""
    name, flags, prompt, output, ids, seconds, quick_seconds = model
    seconds = quick_seconds if options.quick else seconds
    server = Server(options.binary, flags, options.rows)
    try:
        bodies = Bodies(ids, options.seed)
        alone = await unloaded(server, bodies, prompt)
        most = await capacity(server, bodies, prompt, output, options.rows, 6 * options.rows, options.seed)
        objective = OBJECTIVE * options.rows / most
        print(f"{name}: {prompt} + {output} tokens, {options.rows} rows, capacity {most:.1f} requests/s, objective "
              f"{1e3 * objective:.0f} ms, TTFT of the idle server {1e3 * alone:.0f} ms", flush=True)
        lines = []
        for left, process in zip([3, 2, 1], PROCESSES):
            requests, runs = schedule(process, max(4 * options.rows, round(most * seconds)), prompt, output, options.seed), {}

            async def attempt(share):
                rate = share * most
                run = await observe(server, bodies, requests, rate, 2 * objective)
                runs[rate] = run
                kept, below = part_in_time(run, objective), part_below_one(run)
                late = statistics.quantiles(run["late"], n=100)[98]
                print(f"  {process}: {rate:.1f} requests/s ({share:.2f} of capacity): in time {kept:.3f}, ratio below 1 "
                      f"{below:.3f}, refused {run['refused']}, sent late by {1e3 * late:.1f} ms (p99)", flush=True)
                if out:
                    record = {"model": name, "process": process, "rows": options.rows, "capacity": most,
                              "objective": objective, "rate": rate, **run}
                    out.write(json.dumps(record) + "\n")
                return kept, below

            share_of_time = (deadline - time.monotonic()) / left
            await explore(attempt, 0.15 if options.quick else 0.05, time.monotonic() + share_of_time)
            saturated = crossing([(rate, part_below_one(run)) for rate, run in runs.items()])
            kept = [crossing([(rate, part_in_time(run, factor * objective)) for rate, run in runs.items()])
                    for factor in (1, 0.5, 2)]
            ratios = [quotient(saturated, rate) for rate in kept]
            lines.append(" | ".join([f"| {name}", process, shown(kept[0], 2), shown(saturated, 2),
                                     *(shown(ratio, 3) for ratio in ratios)]) + " |")
        return lines
    finally:
        server.stop()


async def main(options):
    begin = time.monotonic()
    limit = 55 if options.quick else 660
    print(f"load average {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", flush=True)
    lines = []
    models = [model for model in MODELS if options.model in (None, model[0])]
    weights = [model[-1 if options.quick else -2] for model in models]
    with open(options.samples, "w") if options.samples else contextlib.nullcontext() as out:
        for number, model in enumerate(models):
            deadline = begin + limit * sum(weights[:number + 1]) / sum(weights)
            lines += await measure(options, model, out, deadline)
    print(f"{time.monotonic() - begin:.0f} s")
    print("| model | arrivals | requests/s with TTFT kept | with saturation below 1 | ratio | half the objective | twice |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("binary", help="path of hearth")
parser.add_argument("--model", choices=[model[0] for model in MODELS], help="one of the models; default: all")
parser.add_argument("--rows", type=int, help="requests that run at a time: 64 as in the simulation, or 16 with --quick")
parser.add_argument("--seed", type=int, default=1, help="seed of arrivals, lengths and prompts")
parser.add_argument("--samples", help="file for the times and samples of every rate, a JSON object a line")
parser.add_argument("--quick", action="store_true", help="one minute, to try the script")
options = parser.parse_args()
options.rows = options.rows or (16 if options.quick else 64)
asyncio.run(main(options))
