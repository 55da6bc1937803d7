"""Makes everything that the tests of hearth-model compare with: see README.md.

    python make_goldens.py            # all
    python make_goldens.py llama-yarn # checkpoints whose names contain the word
    python make_goldens.py adapters   # the adapters
"""

import sys

import adapters
import checkpoints
import configs
import text


def main():
    words = sys.argv[1:]
    if words[:1] == ["adapters"]:
        adapters.make(words[1:])
        return
    checkpoints.make(words)
    if not words:
        adapters.make([])
        configs.make()
        text.make()


if __name__ == "__main__":
    main()
