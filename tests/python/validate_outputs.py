"""Reads lines of {"schema", "text"} and validates each text with `jsonschema`. Prints a count per draft."""

import collections
import json
import sys

import jsonschema
from jsonschema.validators import validator_for

counts = collections.Counter()
for line in sys.stdin:
    entry = json.loads(line)
    schema = entry["schema"]
    kind = validator_for(schema, default=None)
    assert kind is not None, schema
    kind.check_schema(schema)
    value = json.loads(entry["text"])
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    errors = [error.message for error in validator.iter_errors(value)]
    assert not errors, f"{schema}: {entry['text']}: {errors}"
    counts[kind.__name__] += 1
print(json.dumps(counts))
