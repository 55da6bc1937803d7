"""Talks to `hearth chat` through a pseudo-terminal, as a person does.

Usage: terminal_chat.py HEARTH URL KEY
"""

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

HEARTH, URL, KEY = sys.argv[1:]
PATIENCE = 30
# An empty line to edit, after which the cursor goes to its place.
PROMPT = r"> \r\Z"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, folder, *arguments, **environment):
        self.primary, secondary = pty.openpty()
        ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder), "TERM": "xterm", **environment}

        def own_terminal():
            os.setsid()
            ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [HEARTH, "chat", *arguments], stdin=secondary, stdout=secondary, stderr=secondary,
            env=environment, cwd=folder, preexec_fn=own_terminal)
        os.close(secondary)
        self.shown = ""

    def read(self, seconds):
        if select.select([self.primary], [], [], seconds)[0]:
            try:
                self.shown += os.read(self.primary, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                return False
        return True

    def until(self, pattern):
        """Waits for text that matches, forgets everything up to its end, and returns what was shown."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, ESCAPES.sub("", self.shown))):
            assert time.monotonic() < deadline, f"never {pattern!r}: {self.shown!r}"
            assert self.read(0.2), f"it ended without {pattern!r}: {self.shown!r}"
        plain = ESCAPES.sub("", self.shown)
        self.shown = plain[found.end():]
        return plain[:found.end()]

    def send(self, keys):
        os.write(self.primary, keys.encode())

    def say(self, text):
        """Types a line at the prompt."""
        self.until(PROMPT)
        self.send(text + "\r")

    def end(self):
        self.send("\x04")
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self.read(0.1)
        assert self.process.returncode == 0, (self.process.returncode, self.shown)


def a_person_talks_stops_an_answer_and_goes_on(folder):
    terminal = Terminal(folder, "--url", URL, "--api-key", KEY, "--temperature", "0")
    terminal.until("Talking to hearth-tiny")
    terminal.say("What is 3 + 4?")
    answer = terminal.until(r"\d+ tokens, [\d.]+ tokens/s")
    assert "7" in answer.split("4?")[-1], answer
    # A long answer is wrapped, and Ctrl-C ends it and not the chat.
    terminal.say("/set max_tokens 600")
    terminal.until("max_tokens 600")
    terminal.say("/set temperature 1.8")
    terminal.until("temperature 1.8")
    # Most answers are short. On a busy machine they have often ended when their beginning is read.
    stopped, deadline = False, time.monotonic() + PATIENCE
    while not stopped:
        assert time.monotonic() < deadline, "no answer was long enough to be stopped"
        # Earlier answers would fill the context.
        terminal.say("/clear")
        terminal.until("conversation is forgotten")
        terminal.say("Tell me a very long story about a dog.")
        terminal.until(r"dog\.[^>]*[a-z]{2}")
        terminal.send("\x03")
        # An answer that has ended by then leaves Ctrl-C to the prompt.
        end = terminal.until(r"\(stopped\)|tokens/s|Ctrl-D or /quit ends the chat")
        stopped = end.endswith("(stopped)")
    terminal.say("/set max_tokens 100")
    terminal.until("max_tokens 100")
    terminal.say("/set temperature 0")
    terminal.until("temperature 0")
    terminal.say("What is 2 + 2?")
    assert "4" in terminal.until("tokens/s").split("2?")[-1]
    # Ctrl-C at the prompt ends the line alone.
    terminal.until(PROMPT)
    terminal.send("half a line\x03")
    terminal.until("Ctrl-D or /quit ends the chat")
    # Lines are pasted as one message.
    terminal.until(PROMPT)
    terminal.send("\x1b[200~What is\r1 + 1?\x1b[201~\r")
    assert "2" in terminal.until("tokens/s")
    terminal.say("/regenerate")
    terminal.until("tokens/s")
    terminal.say("/save talk.json")
    terminal.until("Saved talk.json")
    messages = json.loads(Path(folder, "talk.json").read_text())
    assert messages[-2]["content"] == "What is\n1 + 1?", messages
    assert messages[-1]["role"] == "assistant"
    # An earlier line is found by a part of it, and sent again.
    terminal.until(PROMPT)
    terminal.send("\x12temperature 0")
    terminal.until(r"\(earlier: temperature 0\) /set temperature 0")
    terminal.send("\r")
    terminal.until("temperature 0")
    # The help is as wide as the terminal, and no word is divided.
    terminal.say("/help")
    told = terminal.until("Ctrl-G to\\s+leave")
    assert all(len(line) < 60 for line in told.splitlines()), told
    assert "Ctrl-R" in told, told
    terminal.say("/nothing")
    terminal.until("there is no command /nothing")
    terminal.say("/system Be brief.")
    terminal.until("begins anew")
    terminal.say("/regenerate")
    terminal.until("no answer to give again")
    terminal.until(PROMPT)
    terminal.end()
    for line in ESCAPES.sub("", terminal.shown).splitlines():
        assert len(line) <= 60, line


def the_next_chat_knows_the_lines_of_the_last_one(folder):
    terminal = Terminal(folder, "--url", URL, HEARTH_API_KEY=KEY)
    terminal.until(PROMPT)
    terminal.send("\x1b[A\x1b[A")
    terminal.until("/system Be brief")
    terminal.send("\x15")
    terminal.until(PROMPT)
    terminal.end()
    history = Path(folder, "hearth/chat_history")
    assert history.stat().st_mode & 0o77 == 0, oct(history.stat().st_mode)


def a_wrong_key_and_a_server_that_is_not_there_are_told(folder):
    refused = subprocess.run([HEARTH, "chat", "--url", URL, "--api-key", "wrong"], capture_output=True, text=True)
    assert refused.returncode != 0 and "another key" in refused.stderr, refused
    nobody = "http://127.0.0.1:9"
    refused = subprocess.run([HEARTH, "chat", "--url", nobody], capture_output=True, text=True)
    assert refused.returncode != 0 and f"is a server running at {nobody}?" in refused.stderr, refused
    # Another program gets the text alone.
    piped = subprocess.run(
        [HEARTH, "chat", "--url", URL, "--temperature", "0"], input="What is 3 + 4?\n", capture_output=True, text=True,
        env={**os.environ, "OPENAI_API_KEY": KEY, "HEARTH_API_KEY": ""})
    assert piped.returncode == 0 and "7" in piped.stdout and "\x1b" not in piped.stdout, piped


with tempfile.TemporaryDirectory() as folder:
    a_person_talks_stops_an_answer_and_goes_on(folder)
    the_next_chat_knows_the_lines_of_the_last_one(folder)
    a_wrong_key_and_a_server_that_is_not_there_are_told(folder)
print("the chat works in a terminal")
