"""Runs a program in a pseudo-terminal, interrupts it with Ctrl-C, and writes what it wrote as JSON.

    python terminal.py TEXT N PROGRAM ARGUMENT...

Ctrl-C is typed once the program has written TEXT N times.
"""

import json
import os
import pty
import select
import sys
import time

text, times, command = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3:]
process, terminal = pty.fork()
if process == 0:
    os.execvp(command[0], command)
written, typed, deadline = b"", False, time.monotonic() + 60
while True:
    assert time.monotonic() < deadline, written
    if not select.select([terminal], [], [], 1)[0]:
        continue
    try:
        some = os.read(terminal, 65536)
    except OSError:  # The program has ended.
        break
    if not some:
        break
    written += some
    if not typed and written.count(text) >= times:
        os.write(terminal, b"\x03")
        typed = True
_, status = os.waitpid(process, 0)
json.dump({"written": written.decode(), "status": os.waitstatus_to_exitcode(status)}, sys.stdout)
