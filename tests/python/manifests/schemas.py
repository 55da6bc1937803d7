"""Validates each document against the schema of its kind, or of its file."""

from pathlib import PurePath

import jsonschema
import kubernetes_validate
import yaml

# The oldest release of Kubernetes that the manifests are written for.
KUBERNETES = "1.33"


def check(deployment):
    for document in deployment.documents:
        validate(deployment, document.file, document.content)
        if document.kind == "ConfigMap":
            for key, text in document.content.get("data", {}).items():
                if key.endswith(".yaml"):
                    validate(deployment, f"{document.file} ({key})", yaml.safe_load(text))


def validate(deployment, file, content):
    own = deployment.folder / "check" / f"{content.get('kind', PurePath(file).stem)}.yaml"
    try:
        if own.exists():
            jsonschema.validate(content, yaml.safe_load(own.read_text()))
        elif "kind" in content and "apiVersion" in content:
            kubernetes_validate.validate(content, KUBERNETES, strict=True)
        else:
            deployment.problem(file, f"there is no schema deploy/check/{own.name}")
    except kubernetes_validate.SchemaNotFoundError as error:
        deployment.problem(file, error.message)
    except jsonschema.ValidationError as error:
        path = "/".join(str(part) for part in error.absolute_path)
        deployment.problem(file, f"{content.get('kind', 'the file')} at /{path}: {error.message}")
