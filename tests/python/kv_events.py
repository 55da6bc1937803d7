"""Reads the KV events of `hearth serve` with the classes and the socket options of vLLM's example
(`examples/features/kv_events/kv_events_subscriber.py` of vLLM 0.33): ENDPOINT REPLAY_ENDPOINT TOPIC SERVER_URL BLOCK_SIZE."""

import sys
import time
from typing import Any

import msgspec
import requests
import zmq
from msgspec.msgpack import Decoder


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


endpoint, replay_endpoint, topic, server, block_size = sys.argv[1:]
block_size = int(block_size)
decoder = Decoder(type=KVEventBatch)
context = zmq.Context()


class Reader:
    """Knows what is cached, by the events alone."""

    def __init__(self):
        self.sub = context.socket(zmq.SUB)
        self.sub.connect(endpoint)
        self.sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.last = -1
        self.blocks = {}

    def apply(self, seq, payload):
        assert seq == self.last + 1, (seq, self.last)
        self.last = seq
        batch = decoder.decode(payload)
        assert abs(batch.ts - time.time()) < 600 and batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.blocks[block, event.medium]
            else:
                assert event.block_size == block_size and event.lora_id is None
                parent = event.parent_block_hash
                assert parent is None or (parent, event.medium) in self.blocks
                for at, block in enumerate(event.block_hashes):
                    tokens = tuple(event.token_ids[at * block_size:(at + 1) * block_size])
                    assert len(tokens) == block_size
                    salt = event.extra_keys and event.extra_keys[at]
                    self.blocks[block, event.medium] = (parent, tokens, salt and tuple(salt))
                    parent = block

    def replay(self, start):
        # A REQ socket, as the example has it, takes one message for each request and drops the others.
        socket = context.socket(zmq.DEALER)
        socket.connect(replay_endpoint)
        socket.send_multipart((b"", start.to_bytes(8, "big")))
        while True:
            assert socket.poll(10_000), "no answer to a request for a replay"
            delimiter, _, seq, payload = socket.recv_multipart()
            assert delimiter == b""
            if not payload:
                assert int.from_bytes(seq, "big", signed=True) == -1
                return
            if int.from_bytes(seq, "big") > self.last:
                self.apply(int.from_bytes(seq, "big"), payload)

    def poll(self, wait=2_000):
        while self.sub.poll(wait):
            own, seq, payload = self.sub.recv_multipart()
            assert own == topic.encode()
            seq = int.from_bytes(seq, "big")
            if seq > self.last + 1:
                self.replay(self.last + 1)
            if seq > self.last:
                self.apply(seq, payload)
            wait = 300

    def matched(self, prompt, medium, salt=None):
        parent, matched = None, 0
        for at in range(0, len(prompt) - block_size + 1, block_size):
            wanted = (parent, tuple(prompt[at:at + block_size]), (salt,) if salt and at == 0 else None)
            found = [block for (block, own), value in self.blocks.items() if own == medium and value == wanted]
            if not found:
                break
            [parent] = found
            matched += block_size
        return matched


def generate(prompt, **fields):
    params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = requests.post(f"{server}/generate", json={"input_ids": prompt, "sampling_params": params, **fields})
    answer.raise_for_status()


def cached():
    kv = requests.get(f"{server}/server_info").json()["internal_states"][0]
    return kv["kv"]["cached"], kv["host_kv"]["cached"]


def prompt(seed, tokens=64):
    return [(seed * 31 + at * 7) % 97 for at in range(tokens)]


first = Reader()
first.replay(0)
generate(prompt(1))
first.poll()
assert first.matched(prompt(1), "GPU") == 64, first.blocks
generate(prompt(2), cache_salt="salt")
first.poll()
assert first.matched(prompt(2), "GPU") == 0
assert first.matched(prompt(2), "GPU", "salt") == 64
# Many prompts evict the first ones into the host's memory.
for seed in range(3, 20):
    generate(prompt(seed))
first.poll()
per_tier = [sum(medium == own for _, own in first.blocks) * block_size for medium in ("GPU", "CPU")]
assert tuple(per_tier) == cached(), (per_tier, cached())
assert first.matched(prompt(19), "GPU") == 64
assert first.matched(prompt(1), "GPU") == 0 and first.matched(prompt(1), "CPU") == 64
# A reader that comes late learns the same from a replay.
late = Reader()
late.replay(0)
assert late.blocks == first.blocks
requests.post(f"{server}/flush_cache").raise_for_status()
first.poll()
late.poll()
assert not first.blocks and not late.blocks
print("ok", first.last + 1, "batches")
