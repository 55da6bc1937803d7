"""Checks the flags and variables of Hearth's containers, and the names of metrics."""

import json
import re

from .files import containers, pod_spec

METRIC = re.compile(r"\b(?:vllm|sglang):[a-z_]+|\bllm_[a-z_]+")
# Sections of docs/METRICS.md with what `--metrics-names vllm,otel` shows, which is the default.
DEFAULT_SECTIONS = ("Instruments", "vllm", "Always")


def check(deployment, help_of, documented_metrics):
    """`help_of` maps a command to the text of its --help; `documented_metrics` is docs/METRICS.md."""
    known = {command: flags(text) for command, text in help_of.items()}
    for document, container in containers(deployment):
        if container["image"].startswith("hearth:"):
            where = f"{document.file} ({container['name']})"
            check_arguments(deployment, where, container.get("args", []), known)
            check_variables(deployment, where, container, known)
            check_pod(deployment, where, pod_spec(document), container.get("args", []))
    for line in (deployment.folder / "Dockerfile").read_text().splitlines():
        if line.startswith("CMD "):
            arguments = json.loads(line.removeprefix("CMD "))
            check_arguments(deployment, "Dockerfile", arguments, known)
    check_metrics(deployment, documented_metrics)


def flags(text):
    """The long flags in a help text of clap."""
    return set(re.findall(r"^\s+(?:-\w, )?(--[a-z0-9-]+)", text, re.MULTILINE))


def check_arguments(deployment, where, arguments, known):
    command = arguments[0] if arguments else None
    if command not in known:
        deployment.problem(where, f"the first argument is {command!r}, which is no command of hearth")
        return
    for argument in arguments[1:]:
        flag = str(argument).split("=")[0]
        if flag.startswith("--") and flag not in known[command]:
            deployment.problem(where, f"`hearth {command}` has no flag {flag}")


def check_variables(deployment, where, container, known):
    every = set().union(*known.values())
    for name in (variable["name"] for variable in container.get("env", [])):
        flag = "--" + name.removeprefix("HEARTH_").lower().replace("_", "-")
        if name.startswith("HEARTH_") and flag not in every:
            deployment.problem(where, f"{name} is set, but hearth has no flag {flag}")


def check_pod(deployment, where, pod, arguments):
    if not pod:
        return
    if pod.get("enableServiceLinks") is not False:
        deployment.problem(where, "enableServiceLinks must be false: Kubernetes would set HEARTH_*")
    if "--shutdown-timeout" in arguments:
        timeout = int(arguments[arguments.index("--shutdown-timeout") + 1])
        grace = pod.get("terminationGracePeriodSeconds", 30)
        if grace <= timeout:
            deployment.problem(
                where,
                f"terminationGracePeriodSeconds is {grace}, and --shutdown-timeout needs {timeout}",
            )


def check_metrics(deployment, documented):
    """Every metric that a file names must be one that Hearth exports without further flags."""
    sections = documented.split("\n## ")
    shown = [text for text in sections if text.split("\n")[0] in DEFAULT_SECTIONS]
    exported = set(re.findall(r"`([a-z_:]+)`", "\n".join(shown)))
    for file in sorted({document.file for document in deployment.documents}):
        for name in sorted(set(METRIC.findall((deployment.folder / file).read_text()))):
            if name not in exported:
                deployment.problem(file, f"hearth shows no metric {name} by default")
