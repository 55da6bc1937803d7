"""The code that the client scripts share: it runs every function that begins with `test_`, and exits with 1 if one
of them fails."""

import sys
import traceback


def run(tests, client):
    tests = [(name, test) for name, test in tests.items() if name.startswith("test_")]
    failed = 0
    for name, test in tests:
        try:
            test()
            print(f"ok      {name}")
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    print(f"{len(tests) - failed} of {len(tests)} pass with {client}")
    sys.exit(1 if failed else 0)


def raises(error, action):
    """Returns the error that `action` raises, which must be of exactly this class."""
    try:
        answer = action()
    except Exception as raised:
        assert type(raised) is error, f"{type(raised).__name__} instead of {error.__name__}: {raised}"
        return raised
    raise AssertionError(f"no {error.__name__}: {answer}")
