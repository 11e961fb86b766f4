"""A collector in a process of its own: to be killed, measured and read from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "anchor_cli"]


def bare_environment(**variables: str) -> dict[str, str]:
    """This process's environment without anything of anchorlib's, and `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANCHOR_")}
    return kept | variables


class Served:
    """A running `anchor serve`; `address` is host:port."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.line = line
        self.address = line.split()[3]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory(self) -> int:
        """Bytes of memory that it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    def threads(self) -> int:
        return int(
            Path(f"/proc/{self.process.pid}/status").read_text().split("Threads:")[1].split()[0]
        )

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit code, further stdout, stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def served(
    store: Path, *options: str, bind: str = "127.0.0.1:0", **variables: str
) -> Iterator[Served]:
    """`anchor serve` until the context ends, then killed if it still lives."""
    command = [*COMMAND, "serve", "--store", str(store), "--bind", bind, *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=bare_environment(**variables),
    )
    try:
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            try:
                yield Served(process, line)
            finally:  # or a test that fails would wait for it
                if process.poll() is None:
                    process.kill()
    finally:
        if process.poll() is None:
            process.kill()


def called(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`anchor ARGUMENTS` as a user calls it."""
    return run([*COMMAND, *map(str, arguments)], **variables)


def run(command: Sequence[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Any command, with an environment of its own."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=bare_environment(**variables),
    )
