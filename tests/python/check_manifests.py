"""Checks everything under deploy/, without a cluster and without network.

    python check_manifests.py DEPLOY METRICS.md serve=HELP router=HELP

DEPLOY is the folder, METRICS.md the page of all metrics, and each HELP a file with the output of
`hearth serve --help` or `hearth router --help`. Prints every problem on a line of its own, and
exits with status 1 if there is one.
"""

import sys
from pathlib import Path

from manifests import files, references, schemas, settings


def main(folder, metrics, *helps):
    deployment = files.read(Path(folder))
    help_of = {}
    for argument in helps:
        command, path = argument.split("=", 1)
        help_of[command] = Path(path).read_text()
    schemas.check(deployment)
    settings.check(deployment, help_of, Path(metrics).read_text())
    try:
        references.check(deployment)
    except (KeyError, TypeError, AttributeError) as error:
        # References are read from documents whose schemas may just have been found wrong.
        deployment.problem("references", f"not checked because of a malformed document: {error!r}")
    for problem in deployment.problems:
        print(problem)
    print(f"{len(deployment.documents)} documents, {len(deployment.problems)} problems")
    return 1 if deployment.problems or not deployment.documents else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
