"""Sends many requests over many connections, of which some leave and some are hostile, and checks that the
servers lose nothing: no KV slot, no request without an answer, no memory.

    cargo build --release --workspace --bins
    python benches/hostile_load.py [--requests 1000000] [--seconds 3600] [--connections 256] [--seed 1]

A half of the connections speak HTTP/1.1 to a server without TLS, a quarter HTTP/1.1 over TLS and a quarter
HTTP/2 over TLS to another one; both serve hearth-tiny, each on one thread and with a small KV cache, so that
prefixes are evicted all the time. A fifth of the requests leave at a random point, and a twentieth are
hostile. Most outputs are of a few tokens, because losses come from beginnings and ends of requests. Then
follow floods of HTTP/2 (rapid reset, SETTINGS, PING), during which an ordinary request must be answered. It
takes Python 3.11 and openssl, prints one JSON object, and fails if something was lost. HEARTH_LOAD_REQUESTS
is the same as --requests. With --seconds no request begins later than that.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

RELEASE = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target")) / "release"
LEAVE, HOSTILE = 0.20, 0.05
PATIENCE = 120  # seconds for an answer
SETTLE = 60  # seconds until nothing runs any more
FLOOD = 100_000  # frames of a flood
HEALTH = 5  # seconds for a request during a flood
BLOCKS = 40  # parts of the second half of a load, whose mean memory gives its slope
WORDS = "one two three four five six seven eight nine ten".split()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def bodies(rng, long=False):
    """An API with a body that it takes. `long`: a stream of so many tokens that a client can leave before its end."""
    text = " ".join(rng.choices(WORDS, k=1 + min(59, int(rng.expovariate(1 / 6)))))
    tokens = 24 if long else 1 + min(23, int(rng.expovariate(1 / 2)))
    stream = long or rng.random() < 0.5
    messages = [{"role": "user", "content": text}]
    match rng.randrange(6 if long else 9):
        case 0:
            return "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "stream": stream}
        case 1:
            return "/v1/completions", {"prompt": text, "max_tokens": tokens, "stream": stream, "n": rng.randint(1, 3)}
        case 2:
            return "/v1/responses", {"input": text, "max_output_tokens": tokens, "stream": stream}
        case 3:
            return "/v1/messages", {"messages": messages, "max_tokens": tokens, "stream": stream, "model": "hearth-tiny"}
        case 4:
            options = {"num_predict": tokens}
            return "/api/chat", {"messages": messages, "stream": stream, "model": "hearth-tiny", "options": options}
        case 5:
            return "/generate", {"text": text, "sampling_params": {"max_new_tokens": tokens}, "stream": stream}
        case 6:
            return "/v1/completions", {"prompt": text, "max_tokens": tokens, "guided_json": SCHEMA}
        case 7:
            return "/v1/embeddings", {"input": text}
        case _:
            return "/tokenize", {"prompt": text}


def hostile_body(rng):
    path, body = bodies(rng)
    name = rng.choice(list(body))
    odd = [None, -1, 1e308, [], {}, "a" * 5000, [[[[]]]], True, "\x00<|im_end|>", {"$ref": "#"}]
    body[name] = rng.choice(odd)
    data = json.dumps(body).encode()
    if rng.random() < 0.5:
        data = data[: rng.randint(0, len(data))] + rng.choice([b"", b"\xff" * 30, b"[" * 5000])
    return path, data


def hostile_head(rng, data):
    """The bytes of a request of HTTP/1.1 that no client would send."""
    length = len(data)
    return rng.choice([
        b"\x16\x03\x01\x02\x00nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999\r\n\r\n" + data,
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\n" + b"x: y\r\n" * 2000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: evil.example\r\ncontent-length: %d\r\n\r\n" % length + data,
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n" + data,
        b"DELETE /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ])


LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


class Left(Exception):
    """The client has left, as it meant to."""


class Http1:
    def __init__(self, port, tls):
        self.port, self.tls, self.stream = port, tls, None

    async def open(self):
        if self.stream is None:
            name = "localhost" if self.tls else None
            self.stream = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, server_hostname=name)
        return self.stream

    def close(self):
        if self.stream is not None:
            self.stream[1].transport.abort()
            self.stream = None

    async def request(self, path, data, head, leave):
        """The status. `leave` is the number of reads after which the client leaves, or None."""
        reader, writer = await self.open()
        if head is None:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            head = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
        if leave == 0:
            writer.write(head[: len(head) // 2])
            raise Left
        writer.write(head)
        await writer.drain()
        if leave == 1:
            await asyncio.sleep(random.random() / 20)
            raise Left
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(answer[9:12])
        found = LENGTH.search(answer)
        length = int(found[1]) if found else 0
        chunked = b"\r\ntransfer-encoding: chunked" in answer
        closes = b"\r\nconnection: close" in answer
        reads = 0
        while chunked:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            await reader.readexactly(size + 2)
            reads += 1
            if leave is not None and reads >= leave:
                raise Left
            chunked = size > 0
        await reader.readexactly(length)
        if closes:
            self.close()
        return status


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hpack(headers):
    """Literals without an index and without Huffman's code."""

    def number(value):
        if value < 127:
            return bytes([value])
        rest, out = value - 127, [127]
        while rest >= 128:
            out.append(rest % 128 + 128)
            rest //= 128
        return bytes([*out, rest])

    parts = ((name.encode(), str(value).encode()) for name, value in headers)
    return b"".join(b"\0" + number(len(n)) + n + number(len(v)) + v for n, v in parts)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A window of 2 GiB for each stream and for the connection, so that none has to be counted.
WINDOWS = frame(4, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(8, 0, 0, struct.pack(">I", 2**30))
# Only these have a byte of their own in HPACK's static table; others are 0.
STATUSES = {0x88: 200, 0x89: 204, 0x8C: 400, 0x8D: 404, 0x8E: 500}


class Http2:
    def __init__(self, port, tls):
        self.port, self.tls, self.stream, self.next = port, tls, None, 1

    async def open(self):
        if self.stream is None:
            self.stream = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, server_hostname="localhost")
            assert self.stream[1].get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            self.stream[1].write(PREFACE + WINDOWS)
            self.next = 1
        return self.stream

    close = Http1.close

    def headers(self, path, length):
        names = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "localhost")]
        return hpack([*names, ("content-type", "application/json"), ("content-length", length)])

    async def request(self, path, data, head, leave):
        reader, writer = await self.open()
        own, self.next = self.next, self.next + 2
        writer.write(frame(1, 4, own, self.headers(path, len(data))))
        if leave == 0:
            writer.write(frame(3, 0, own, struct.pack(">I", 8)))
            return "left"
        for start in range(0, len(data), 16_384):
            writer.write(frame(0, 0, own, data[start : start + 16_384]))
        writer.write(frame(0, 1, own))
        await writer.drain()
        status, reads = 0, 0
        while True:
            begin = await reader.readexactly(9)
            size, kind, flags = int.from_bytes(begin[:3], "big"), begin[3], begin[4]
            stream = int.from_bytes(begin[5:], "big")
            payload = await reader.readexactly(size)
            if kind == 4 and not flags & 1:
                writer.write(frame(4, 1, 0))
            if kind == 6 and not flags & 1:
                writer.write(frame(6, 1, 0, payload))
            if kind == 7:
                self.close()
                return status
            if stream != own:
                continue
            if kind == 1 and status == 0:
                status = STATUSES.get(payload[0], 0)
            if kind == 3 or (kind in (0, 1) and flags & 1):
                return status
            reads += 1
            if leave is not None and reads > leave:
                # Half of them cancel the stream, and the others close the connection.
                if own % 4 == 1:
                    raise Left
                writer.write(frame(3, 0, own, struct.pack(">I", 8)))
                return "left"


class Load:
    def __init__(self, options, servers):
        self.options, self.servers = options, servers
        self.left_to_send = options.requests
        self.until = time.monotonic() + options.seconds
        self.done = 0
        self.counts = collections.Counter()
        self.faults = []
        self.samples = []

    async def client(self, number):
        rng = random.Random(self.options.seed * 1_000_003 + number)
        kind = number % 4
        plain, tls = self.servers
        connection = {
            0: lambda: Http1(plain.port, None),
            1: lambda: Http1(plain.port, None),
            2: lambda: Http1(tls.port, context(["http/1.1"])),
            3: lambda: Http2(tls.port, context(["h2"])),
        }[kind]()
        while self.left_to_send > 0 and time.monotonic() < self.until:
            self.left_to_send -= 1
            await self.exchange(connection, rng, "h2" if kind == 3 else "h1")
        connection.close()

    async def exchange(self, connection, rng, kind):
        leave = rng.choice([0, 1, 1, 2, 3, 8]) if rng.random() < LEAVE else None
        path, body = bodies(rng, long=leave is not None and leave > 1)
        data, head = json.dumps(body).encode(), None
        is_hostile = rng.random() < HOSTILE
        if is_hostile:
            path, data = hostile_body(rng)
            if kind == "h1" and rng.random() < 0.5:
                head = hostile_head(rng, data)
            # After such a head the server may wait for a body that never comes.
            leave = leave if leave is not None else (1 if head else None)
        try:
            status = await asyncio.wait_for(connection.request(path, data, head, leave), PATIENCE)
            self.counts[f"{kind} {status}"] += 1
            if status in (500, 502):
                self.faults.append(f"{path}: {status} {data[:200]!r}")
            # Bytes after a hostile head may be left in the connection.
            if head:
                connection.close()
        except TimeoutError:
            self.counts["hung"] += 1
            self.faults.append(f"{kind} {path} hung: {data[:200]!r}")
            connection.close()
        except Left:
            self.counts[f"{kind} left"] += 1
            connection.close()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, ValueError, OSError) as error:
            self.counts[f"{kind} closed"] += 1
            if not is_hostile and leave is None:
                self.faults.append(f"{kind} {path}: {error!r}")
            connection.close()
        self.done += 1

    async def sample(self):
        shown = 0
        while True:
            self.samples.append((self.done, [server.memory() for server in self.servers]))
            if self.done >= shown:
                print(*self.samples[-1], file=sys.stderr, flush=True)
                shown = self.done + self.options.requests // 100
            await asyncio.sleep(1)

    async def run(self):
        sampler = asyncio.create_task(self.sample())
        await asyncio.gather(*(self.client(number) for number in range(self.options.connections)))
        sampler.cancel()
        self.samples.append((self.done, [server.memory() for server in self.servers]))


def context(protocols):
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_alpn_protocols(protocols)
    return tls


async def flood(server, name, frames):
    """Sends `frames` over one connection as fast as the server takes them, while another one asks."""
    connection = Http2(server.port, context(["h2"]))
    _, writer = await connection.open()
    before, began = server.memory(), time.monotonic()

    async def send():
        try:
            for start in range(0, FLOOD, 500):
                writer.write(b"".join(frames(connection, start + each) for each in range(500)))
                await asyncio.wait_for(writer.drain(), 20)
            return "taken"
        except (ConnectionError, OSError, TimeoutError, ssl.SSLError):
            return "closed by the server"

    sending = asyncio.create_task(send())
    asked, slowest = Http2(server.port, context(["h2"])), 0.0
    for _ in range(10):
        start = time.monotonic()
        status = await asyncio.wait_for(asked.request("/tokenize", b'{"prompt":"a"}', None, None), HEALTH)
        assert status == 200, (name, status)
        slowest = max(slowest, time.monotonic() - start)
    result = await sending
    connection.close()
    asked.close()
    took = time.monotonic() - began
    return {"frames": FLOOD, "end": result, "s": round(took, 2), "slowest_request_s": round(slowest, 3),
            "memory_mib": round(server.memory() - before, 1)}


def rapid_reset(connection, number):
    own = 2 * number + 1
    headers = connection.headers("/v1/completions", 2)
    return frame(1, 4, own, headers) + frame(3, 0, own, struct.pack(">I", 8))


class Server:
    def __init__(self, hearth, flags):
        log = tempfile.TemporaryFile()
        command = [hearth, "serve", "--port", "0", "--kv-tokens", "16384", "--log-level", "warn", *flags]
        # Threads of two servers that wait for each other would take most of the time.
        one_thread = {**os.environ, "RAYON_NUM_THREADS": "1"}
        command = [str(part) for part in command]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=one_thread)
        self.scheme = "https" if "--tls-cert" in flags else "http"
        self.port = None
        self.find_port()

    def find_port(self):
        """The port that it listens on, by the sockets of the process."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            self.port = listening(self.process.pid)
            if self.port:
                try:
                    self.get("/ready")
                    return
                except OSError:
                    pass
            time.sleep(0.1)
        raise SystemExit("the server does not come up")

    def get(self, path):
        tls = context(["http/1.1"]) if self.scheme == "https" else None
        with urllib.request.urlopen(f"{self.scheme}://127.0.0.1:{self.port}{path}", context=tls, timeout=30) as answer:
            return json.loads(answer.read())

    def memory(self):
        """Resident memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu(self):
        """Seconds of processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def settled(self):
        """The engine's counters when nothing runs any more."""
        until = time.monotonic() + SETTLE
        while True:
            state = self.get("/server_info")["internal_states"][0]
            if state["running"] == state["waiting"] == 0 or time.monotonic() > until:
                return state
            time.sleep(0.2)


def listening(pid):
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            pass
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].split(":")[1], 16)
    return None


def slope(samples, index):
    """KiB of memory for each 1000 requests over the second half, and the standard error of that. Single samples
    depend on those before them, and would make the error too small: these are means of parts of the half."""
    last = samples[-1][0]
    blocks = collections.defaultdict(list)
    for done, memory in samples:
        # At the end only those are left that wait for something.
        if last / 2 <= done <= 0.98 * last:
            blocks[int((done / last - 0.5) / 0.48 * BLOCKS)].append((done / 1000, memory[index] * 1024))
    if len(blocks) < 5:
        return None
    xs, ys = zip(*((statistics.fmean(x), statistics.fmean(y)) for x, y in (zip(*block) for block in blocks.values())))
    line = statistics.linear_regression(xs, ys)
    middle = statistics.fmean(xs)
    spread = sum((x - middle) ** 2 for x in xs)
    rest = sum((y - line.slope * x - line.intercept) ** 2 for x, y in zip(xs, ys))
    error = (rest / (len(xs) - 2) / spread) ** 0.5 if spread else 0.0
    return {"kib_per_1000": round(line.slope, 3), "standard_error": round(error, 3), "blocks": len(xs)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=int(os.environ.get("HEARTH_LOAD_REQUESTS", 4000)))
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hearth", default=RELEASE / "hearth")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cert, key = f"{folder}/cert.pem", f"{folder}/key.pem"
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
        servers = [Server(options.hearth, []), Server(options.hearth, ["--tls-cert", cert, "--tls-key", key])]
        try:
            report, failed = measure(options, servers)
        finally:
            for server in servers:
                server.process.kill()
    print(json.dumps(report, indent=1))
    sys.exit(1 if failed else 0)


def measure(options, servers):
    load = Load(options, servers)
    began = time.monotonic()
    asyncio.run(load.run())
    took = time.monotonic() - began
    floods = {}
    for name, frames in [
        ("rapid reset", rapid_reset),
        ("settings", lambda *_: frame(4, 0, 0, struct.pack(">HI", 3, 100))),
        ("ping", lambda *_: frame(6, 0, 0, b"12345678")),
    ]:
        floods[name] = asyncio.run(flood(servers[1], name, frames))
    lost, ends = 0, []
    for server in servers:
        assert server.process.poll() is None, "a server has ended"
        state = server.settled()
        kv = state["kv"]
        lost += abs(kv["total"] - kv["free"] - kv["cached"]) + kv["held"] + kv["protected"]
        ends.append({name: state[name] for name in ("running", "waiting", "finished", "cancelled", "failed")})
    report = {
        "requests": load.done,
        "connections": options.connections,
        "seconds": round(took, 1),
        "cpu_seconds": {"load": round(time.process_time(), 1), "servers": [server.cpu() for server in servers]},
        "answers": dict(sorted(load.counts.items())),
        "hung": load.counts["hung"],
        "slots_lost": lost,
        "still_running": sum(end["running"] + end["waiting"] for end in ends),
        "faults": len(load.faults),
        "first_faults": load.faults[:5],
        "memory_mib": {"begin": load.samples[0][1], "end": [server.memory() for server in servers]},
        "memory_slope": [slope(load.samples, index) for index in range(len(servers))],
        "engines": ends,
        "floods": floods,
    }
    failed = report["hung"] or lost or report["still_running"] or load.faults
    return report, failed


if __name__ == "__main__":
    main()
