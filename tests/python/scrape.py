"""Reads a page of metrics with Prometheus' own Python parser, and writes it as JSON.

    python scrape.py http://127.0.0.1:8000/metrics [gzip] [openmetrics]

It asks for the formats that are named, as Prometheus does. For each family it writes the kind, the help, and the
samples as [name, labels, value]. It fails if a sample occurs twice, if the buckets of a histogram decrease, or if the
count of a histogram differs from its last bucket.
"""

import gzip
import json
import sys
import urllib.request

from prometheus_client import parser as text
from prometheus_client.openmetrics import parser as openmetrics

request, parser, kind = urllib.request.Request(sys.argv[1]), text, "text/plain; version=0.0.4"
if "gzip" in sys.argv:
    request.add_header("accept-encoding", "gzip")
if "openmetrics" in sys.argv:
    parser, kind = openmetrics, "application/openmetrics-text; version=1.0.0"
    request.add_header(
        "accept",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    )
with urllib.request.urlopen(request) as answer:
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8", answer.headers
    assert answer.headers["vary"] == "accept, accept-encoding", answer.headers
    page, encoding = answer.read(), answer.headers["content-encoding"]
if "gzip" in sys.argv:
    assert encoding == "gzip", encoding
    packed, page = len(page), gzip.decompress(page)
    assert packed * 5 < len(page), f"{packed} of {len(page)} bytes"
else:
    assert encoding is None, encoding
page = page.decode()

families, seen = {}, set()
for family in parser.text_string_to_metric_families(page):
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
