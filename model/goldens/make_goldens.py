"""Makes everything that the tests of hearth-model compare with: see README.md.

    python make_goldens.py            # all
    python make_goldens.py llama-yarn # checkpoints whose names contain the word
    python make_goldens.py adapters   # the adapters
    python make_goldens.py families   # families.json
"""

import sys

import adapters
import checkpoints
import configs
import experts
import text


def main():
    words = sys.argv[1:]
    if words[:1] == ["adapters"]:
        adapters.make(words[1:])
        return
    if words == ["families"]:
        configs.make_families()
        return
    checkpoints.make(words)
    experts.make(words)
    if not words:
        adapters.make([])
        configs.make()
        text.make()


if __name__ == "__main__":
    main()
