"""Runs Schemathesis against a running Hearth server, with requests of all shapes that /openapi.json allows and
of some that it does not allow.

    python openapi_fuzz.py http://127.0.0.1:8000 MODEL [CASES_PER_OPERATION [SEED [PHASES]]]

No response may be a 5xx, and each must have a documented status, content type and shape. `pause_generation` is
left out, because nothing after it would be answered.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import requests

BASE_URL, MODEL = sys.argv[1:3]
CASES = sys.argv[3] if len(sys.argv) > 3 else "10"
SEED = sys.argv[4] if len(sys.argv) > 4 else "1"
PHASES = sys.argv[5] if len(sys.argv) > 5 else "fuzzing"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# Without these values nearly every request would be refused.
KNOWN = {"model": {"const": MODEL}, "role": {"enum": ["user", "system", "assistant"]}}


def narrow(schema):
    """Changes the schema so that requests name the served model and existing roles."""
    if isinstance(schema, list):
        for inner in schema:
            narrow(inner)
    elif isinstance(schema, dict):
        properties = schema.get("properties", {})
        properties |= {name: known for name, known in KNOWN.items() if name in properties}
        for inner in schema.values():
            narrow(inner)


document = requests.get(f"{BASE_URL}/openapi.json", timeout=10).json()
for name, schema in document["components"]["schemas"].items():
    if name.endswith("Request"):
        narrow(schema)

with tempfile.TemporaryDirectory() as folder:
    narrowed = Path(folder) / "openapi.json"
    narrowed.write_text(json.dumps(document))
    command = [
        Path(sys.executable).with_name("st"), "run", narrowed, "--url", BASE_URL,
        "--checks", CHECKS, "--exclude-path", "/pause_generation",
        # Its stream has no end.
        "--exclude-path", "/live", "--phases", PHASES,
        "--max-examples", CASES, "--seed", SEED, "--continue-on-failure",
        "--suppress-health-check", "all", "--request-timeout", "60", "--warnings", "off",
    ]
    sys.exit(subprocess.run(command, cwd=folder).returncode)
