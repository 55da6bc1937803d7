"""Reads the YAML files under deploy/."""

from dataclasses import dataclass, field
from pathlib import Path

import yaml


@dataclass
class Document:
    """One YAML document, and the file that it is in, relative to deploy/."""

    file: str
    content: dict

    @property
    def kind(self):
        return self.content.get("kind")

    @property
    def name(self):
        return self.content.get("metadata", {}).get("name")


@dataclass
class Deployment:
    """Everything under deploy/, and what was found wrong with it."""

    folder: Path
    documents: list = field(default_factory=list)
    problems: list = field(default_factory=list)

    def problem(self, file, message):
        self.problems.append(f"{file}: {message}")

    def of_kind(self, *kinds):
        return [document for document in self.documents if document.kind in kinds]

    def named(self, kind, name):
        """The first object of this kind and name, or None."""
        return next((found for found in self.of_kind(kind) if found.name == name), None)


def read(folder):
    """Reads every YAML file but the schemas of the check itself."""
    deployment = Deployment(folder)
    for path in sorted(folder.rglob("*.yaml")):
        file = path.relative_to(folder).as_posix()
        if file.startswith("check/"):
            continue
        try:
            contents = list(yaml.safe_load_all(path.read_text()))
        except yaml.YAMLError as error:
            deployment.problem(file, f"this is not YAML: {error}")
            continue
        for content in contents:
            if isinstance(content, dict):
                deployment.documents.append(Document(file, content))
            else:
                deployment.problem(file, "a document is not a mapping")
    return deployment


def containers(deployment):
    """Yields (document, container) for every container, also the services of compose.yaml."""
    for document in deployment.documents:
        for container in pod_spec(document).get("containers", []):
            yield document, container
        for name, service in document.content.get("services", {}).items():
            yield document, {
                "name": name,
                "image": service.get("image", ""),
                "args": service.get("command", []),
                "env": [{"name": name} for name in service.get("environment", {})],
            }


def pod_spec(document):
    """The pod of a workload; empty for everything else."""
    return document.content.get("spec", {}).get("template", {}).get("spec", {})
