"""Checks the files of otel/compose against Compose's schema and against each other, without network.

    python check_compose.py COMPOSE_FOLDER SCHEMA

Prints every problem on a line of its own, and exits with status 1 if there is one.
"""

import re
import sys
from pathlib import Path

import jsonschema
import yaml

problems = []


def read(path):
    return yaml.safe_load(path.read_text())


def inside(service, path):
    """The file on this machine that `service` finds at `path`; None if nothing is mounted there."""
    for volume in service.get("volumes", []):
        source, target = volume.split(":")[:2]
        if path == target or path.startswith(f"{target}/"):
            return folder / source / path[len(target):].lstrip("/")
    return None


def check_services(services):
    taken = {}
    for name, service in services.items():
        if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]):
            problems.append(f"{name}: the image {service['image']} has no version")
        for volume in service.get("volumes", []):
            if not (folder / volume.split(":")[0]).exists():
                problems.append(f"{name}: there is no {volume.split(':')[0]}")
        for port in service.get("ports", []):
            if taken.setdefault(port.split(":")[-2], name) != name:
                problems.append(f"{name}: {taken[port.split(':')[-2]]} has the port {port}, too")
        for other in service.get("depends_on", []):
            if other not in services:
                problems.append(f"{name} depends on {other}, which is no service")


def check_collector(services):
    flag = services["collector"]["command"][0]
    config = read(inside(services["collector"], flag.removeprefix("--config=")))
    published = {port.split(":")[-1] for port in services["collector"]["ports"]}
    for protocol in config["receivers"]["otlp"]["protocols"].values():
        if protocol["endpoint"].split(":")[-1] not in published:
            problems.append(f"collector: the port of {protocol['endpoint']} is not published")
    used = set()
    for name, pipeline in config["service"]["pipelines"].items():
        for kind in ("receivers", "processors", "exporters"):
            for part in pipeline[kind]:
                used.add(part)
                if part not in config[kind]:
                    problems.append(f"collector: the pipeline {name} has {kind} {part}, which is not configured")
    for kind in ("receivers", "processors", "exporters"):
        problems.extend(f"collector: {part} is in no pipeline" for part in config[kind] if part not in used)
    for name, exporter in config["exporters"].items():
        host = re.sub(r"^https?://", "", exporter["endpoint"]).split(":")[0]
        if host not in services:
            problems.append(f"collector: {name} sends to {host}, which is no service")
    to_prometheus = [e["endpoint"] for n, e in config["exporters"].items() if n in config["service"]["pipelines"]["metrics"]["exporters"]]
    if to_prometheus != ["http://prometheus:9090/api/v1/otlp"]:
        problems.append(f"collector: metrics go to {to_prometheus}")
    if not any("otlp-write-receiver" in flag for flag in services["prometheus"]["command"]):
        problems.append("prometheus: it does not receive OTLP")


def check_prometheus(services):
    service = services["prometheus"]
    flag = next(flag for flag in service["command"] if flag.startswith("--config.file="))
    config = read(inside(service, flag.removeprefix("--config.file=")))
    for pattern in config["rule_files"]:
        rules = inside(service, pattern)
        if rules is None or not list(rules.parent.glob(rules.name)):
            problems.append(f"prometheus: no file is {pattern}")


def check_grafana(services):
    service = services["grafana"]
    for source in (folder / "grafana/provisioning/datasources").glob("*.yml"):
        for datasource in read(source)["datasources"]:
            host = re.sub(r"^https?://", "", datasource["url"]).split(":")[0]
            if host not in services:
                problems.append(f"grafana: {datasource['name']} is at {host}, which is no service")
    for source in (folder / "grafana/provisioning/dashboards").glob("*.yml"):
        for provider in read(source)["providers"]:
            dashboards = inside(service, provider["options"]["path"])
            if dashboards is None or not list(dashboards.glob("*.json")):
                problems.append(f"grafana: there are no dashboards at {provider['options']['path']}")


folder = Path(sys.argv[1])
compose = read(folder / "compose.yml")
for error in jsonschema.Draft202012Validator(read(Path(sys.argv[2]))).iter_errors(compose):
    problems.append(f"compose.yml at /{'/'.join(map(str, error.path))}: {error.message}")
if not problems:
    check_services(compose["services"])
# The parts are read through what is mounted, which must be there.
if not problems:
    check_collector(compose["services"])
    check_prometheus(compose["services"])
    check_grafana(compose["services"])
print("\n".join(problems) or f"{len(compose['services'])} services, no problems")
sys.exit(1 if problems else 0)
