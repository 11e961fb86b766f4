"""`anchor` in a process whose memory and time the system bounds: what hangs or swells is killed.

    limited = Limited()
    limited.anchor("runs", "--json")         an Outcome, or a Broken that names the call

The process stays for all calls, so that each costs no start of Python; it answers a line of JSON
(the arguments) with a line of JSON (the outcome).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from anchorlib.summary import SCANS
from tests.cli.made import Outcome, anchor

MEMORY: Final = 1 << 30  # bytes of address space beyond what Python and its libraries take
PROCESSOR: Final = 30  # seconds of processor time that one call may take
SILENCE: Final = 300  # seconds after which a call that only waits is ended


class BrokenLimitError(AssertionError):
    """A call that went beyond its limits, or took the process down."""


class Limited:
    """A process that calls `anchor`, with its limits."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.limited"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def anchor(self, *arguments: object) -> Outcome:
        """One call; BrokenLimitError where the process did not survive it."""
        call = [str(argument) for argument in arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BrokenLimitError(f"anchor {' '.join(call)}: ended with {self._process.wait()}")
        return Outcome(*json.loads(line))

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    anchor("runs", "--help")  # loads what every command needs
    import_module("anchorlib.wire.connection.loading")  # and gRPC, which comes late otherwise
    SCANS.load = lambda: None  # type: ignore[method-assign]  # which compiles, for seconds
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        most = int(spent) + PROCESSOR
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        signal.alarm(SILENCE)
        found = anchor(*json.loads(line))
        answers.write(json.dumps([found.code, found.out, found.err]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
