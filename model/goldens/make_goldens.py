"""Makes everything that the tests of hearth-model compare with: see README.md.

    python make_goldens.py            # all
    python make_goldens.py llama-yarn # checkpoints whose names contain the word
"""

import sys

import checkpoints
import configs
import text


def main():
    words = sys.argv[1:]
    checkpoints.make(words)
    if not words:
        configs.make()
        text.make()


if __name__ == "__main__":
    main()
