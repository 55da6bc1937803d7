"""Measures what viewers of /live cost a server, idle and busy.

    python benches/viewers.py target/release/hearth [--viewers 1] [--turns 20] [--seconds 2]

A server with hearth-tiny answers 20 chats a second of 8 tokens each, whose prompts are new, so that its prefix cache
changes all the time. Turns with viewers and without alternate, and a pair's difference of CPU time is one sample: of the
threads that work for viewers, which are those of HTTP and of the engine, and of the whole process. Viewers run in
another process, read, and draw nothing. Printed are the mean and its standard error, in percent of one core.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import random
import socket
import statistics
import subprocess
import time

CHATS_A_SECOND = 20
OTHER_THREADS = ("hearth-cpu", "hearth-device", "hearth-telemetr")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def nanoseconds(pid):
    """Returns the CPU time of each thread by its id, with the name, in nanoseconds."""
    times = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        times[task.name] = (name, int((task / "schedstat").read_text().split()[0]))
    return times


def spent(before, after, counts):
    """Returns the nanoseconds between two readings of those threads whose names count."""
    return sum(now - before.get(task, (name, 0))[1] for task, (name, now) in after.items() if counts(name))


async def post(port, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    writer.close()


async def load(port):
    """Sends chats for ever."""
    chance, tasks = random.Random(1), set()
    while True:
        text = " ".join(str(chance.randrange(10**6)) for _ in range(6))
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "ignore_eos": True}
        task = asyncio.create_task(post(port, body))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(1 / CHATS_A_SECOND)


def view(port, watches, count):
    """Holds `count` streams open while `watches` is set."""
    while watches.wait():
        streams = []
        for _ in range(count):
            stream = socket.create_connection(("127.0.0.1", port))
            stream.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            stream.setblocking(False)
            streams.append(stream)
        while watches.is_set():
            for stream in streams:
                try:
                    stream.recv(1 << 20)
                except BlockingIOError:
                    pass
            time.sleep(0.02)
        for stream in streams:
            stream.close()


def measure(pid, watches, turns, seconds):
    """Returns the differences of pairs of turns in percent of a core: of threads for viewers, and of the process."""
    def turn(with_viewers):
        (watches.set if with_viewers else watches.clear)()
        time.sleep(0.5)
        before, begin = nanoseconds(pid), time.monotonic_ns()
        time.sleep(seconds)
        after, took = nanoseconds(pid), time.monotonic_ns() - begin
        for_viewers = spent(before, after, lambda name: not name.startswith(OTHER_THREADS))
        return 100 * for_viewers / took, 100 * spent(before, after, lambda _: True) / took

    pairs = []
    for number in range(turns):
        order = [False, True] if number % 2 else [True, False]
        taken = {with_viewers: turn(with_viewers) for with_viewers in order}
        pairs.append([on - off for on, off in zip(taken[True], taken[False])])
    watches.clear()
    return list(zip(*pairs))


def shown(differences):
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return f"{statistics.mean(differences):+.3f} ± {error:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="path of hearth")
    parser.add_argument("--viewers", type=int, default=1, help="viewers at a time")
    parser.add_argument("--turns", type=int, default=20, help="pairs of turns")
    parser.add_argument("--seconds", type=float, default=2, help="length of a turn")
    options = parser.parse_args()
    port = free_port()
    server = subprocess.Popen([options.binary, "serve", "--port", str(port)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    watches = multiprocessing.Event()
    others = []
    try:
        while True:
            assert server.poll() is None, "the server has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        time.sleep(2)
        others.append(multiprocessing.Process(target=view, args=(port, watches, options.viewers), daemon=True))
        others[0].start()
        print(f"load average {os.getloadavg()[0]:.2f}, {options.viewers} viewers, {options.turns} x {options.seconds} s")
        print("| server | HTTP and engine threads | process |")
        print("|---|---|---|")
        idle = measure(server.pid, watches, options.turns, options.seconds)
        print(f"| idle | {shown(idle[0])} | {shown(idle[1])} |", flush=True)
        others.append(multiprocessing.Process(target=lambda: asyncio.run(load(port)), daemon=True))
        others[1].start()
        time.sleep(2)
        busy = measure(server.pid, watches, options.turns, options.seconds)
        print(f"| busy | {shown(busy[0])} | {shown(busy[1])} |")
        print("threads:", ", ".join(sorted({name for name, _ in nanoseconds(server.pid).values()})))
    finally:
        for other in others:
            other.terminate()
        server.terminate()
        server.wait()


main()
