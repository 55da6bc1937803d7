"""What the client scripts have in common: every function that begins with `test_` is run, and
the exit code is 1 if one fails."""

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
    """The error of exactly this class that `action` raises."""
    try:
        answer = action()
    except Exception as raised:
        assert type(raised) is error, f"{type(raised).__name__} instead of {error.__name__}: {raised}"
        return raised
    raise AssertionError(f"no {error.__name__}: {answer}")
