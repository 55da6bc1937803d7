"""Runs the trace of `hearth-sim tree` on SGLang's Python RadixCache.

    pip download sglang==0.5.23 --no-deps && unzip -q sglang-*.whl 'sglang/*' -d WHEEL
    python -m venv V && V/bin/pip install torch
    V/bin/python benches/peers/sglang_tree.py WHEEL 1000000

Only `radix_cache.py` and the modules that it computes with are SGLang's; mocks replace the modules of the
server. Slots are tensors of torch on the CPU, as in SGLang.
"""

import importlib.machinery
import importlib.util
import sys
import time
import types
from array import array
from unittest.mock import MagicMock

import torch

SHARED = OWN = 500
OPERATIONS = 5000
MASK = (1 << 64) - 1


class Absent:
    """Provides a mock for every module of SGLang that does not belong to the tree."""

    REAL = {
        "sglang.srt.mem_cache.radix_cache",
        "sglang.srt.mem_cache.base_prefix_cache",
        "sglang.srt.mem_cache.cache_init_params",
        "sglang.srt.mem_cache.evict_policy",
    }

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ("sglang", "triton") or name in self.REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__ = [f"{WHEEL}/{spec.name.replace('.', '/')}"]
        module.__spec__ = spec
        return module

    def exec_module(self, module):
        pass


def stream(seed, count):
    state = (seed * 0x9E3779B97F4A7C15 & MASK) | 1
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        yield (state >> 33) % 32000


def sequence(family, member):
    own = stream((family + 1) << 32 | (member + 1), OWN)
    return array("q", [*stream(family + 1, SHARED), *own])


def micros(operations):
    start = time.perf_counter()
    operations()
    return (time.perf_counter() - start) * 1e6 / OPERATIONS


def main(tokens):
    torch.set_num_threads(1)
    sys.meta_path.insert(0, Absent())
    import sglang.srt.mem_cache.evict_policy as policies
    import sglang.srt.mem_cache.utils as utils

    utils.get_eviction_strategy = lambda *_: policies.LRUStrategy()
    utils.split_node_hash_value = lambda value, *_: (None, None)
    import sglang.srt.mem_cache.base_prefix_cache as base
    import sglang.srt.mem_cache.radix_cache as radix

    tree = radix.RadixCache.create_simulated(mock_allocator=types.SimpleNamespace(
        device="cpu", free_segment=lambda *_, **__: None,
    ))
    tree.kv_events = types.SimpleNamespace(
        record_remove=lambda *_: None, record_store=lambda *_: None, enabled=False,
    )
    tree.update_eviction_metrics = lambda *_: None
    slots = torch.arange(SHARED + OWN, dtype=torch.int64)
    families = max(tokens // (SHARED + 10 * OWN), 1)

    def insert(ids):
        tree.insert(base.InsertParams(key=radix.RadixKey(ids), value=slots))

    for member in range(10):
        for family in range(families):
            insert(sequence(family, member))
    known = [sequence(i * 7919 % families, i % 10) for i in range(OPERATIONS)]
    new = [sequence(i * 7919 % families, 10 + i) for i in range(OPERATIONS)]

    def match():
        for ids in known:
            found = tree.match_prefix(base.MatchPrefixParams(key=radix.RadixKey(ids)))
            assert found.device_prefix_len == len(ids), found

    matched = micros(match)
    inserted = micros(lambda: [insert(ids) for ids in new])
    start, evictions = time.perf_counter(), 100
    for _ in range(evictions):
        tree.evict(base.EvictParams(num_tokens=OWN))
    evicted = (time.perf_counter() - start) * 1e6 / evictions
    print("| cached tokens | match, us | insert, us | evict, us |")
    print(f"| {tokens} | {matched:.1f} | {inserted:.1f} | {evicted:.1f} |")


if __name__ == "__main__":
    WHEEL = sys.argv[1]
    main(int(sys.argv[2]))
