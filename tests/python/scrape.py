"""Reads a page of metrics with Prometheus' own Python parser, and writes it as JSON.

    python scrape.py http://127.0.0.1:8000/metrics

Each family: its kind, its help, and its samples as [name, labels, value]. Fails where a
sample is there twice, a bucket falls, or a histogram's count is not its last bucket.
"""

import json
import sys
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

with urllib.request.urlopen(sys.argv[1]) as answer:
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = answer.read().decode()

families, seen = {}, set()
for family in text_string_to_metric_families(page):
    assert family.name not in families, f"{family.name} is there twice"
    assert family.documentation, f"{family.name} has no HELP"
    samples, buckets = [], {}
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in seen, f"{key} is there twice"
        seen.add(key)
        samples.append([sample.name, sample.labels, sample.value])
        rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            before = buckets.get(rest, 0)
            assert sample.value >= before, f"{key} is less than the bucket before it"
            buckets[rest] = sample.value
        elif family.type == "histogram" and sample.name.endswith("_count"):
            assert sample.value == buckets[rest], f"{key} is not the bucket of +Inf"
    families[family.name] = {"kind": family.type, "help": family.documentation, "samples": samples}
json.dump(families, sys.stdout)
