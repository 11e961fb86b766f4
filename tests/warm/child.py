"""The command: asks the parent to fork for what it was called with, and ends as the child does.

Where it is called as no fork can be, it becomes a Python of its own: with an option of the
interpreter's, or with open files beside the three streams.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Called with the parent's address, then as Python is."""
    address, *words = sys.argv[1:]
    if _has_options(words) or _has_files():
        os.execv(sys.executable, [sys.executable, *words])
    asked = {"words": words, "directory": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109  # pathlib takes long to load
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        socket.send_fds(line, [b"."], [0, 1, 2])
        line.sendall(json.dumps(asked).encode() + b"\n")
        answer = line.makefile().readline()
    code = int(answer or "-9")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _has_options(words: list[str]) -> bool:
    """Whether there are options of the interpreter's that a fork cannot have: not -W, not -u."""
    while words[:1] in (["-W"], ["-u"]):
        words = words[2 if words[0] == "-W" else 1 :]
    return not words or (words[0].startswith("-") and words[0] not in ("-c", "-m"))


def _has_files() -> bool:
    """Whether files are open that this process did not open: the listing itself is one more."""
    return len(os.listdir("/proc/self/fd")) > len((0, 1, 2)) + 1  # noqa: PTH208  # as above


main()
