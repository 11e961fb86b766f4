"""A reader who follows a page block by block, in a folder of his own.

Python runs in this process; so do `anchor …` and `python FILE.py …`, as they would from a shell
but for the seconds that importing torch takes. Everything else is a line of bash. A collector is
started on a free port, which then stands for the address that its line binds to (127.0.0.1:50051);
its metrics on another, for 9464. So is a scheduler of dask; it and its workers are ended with `&`'s
shell.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from anchor_cli.main import main
from anchorlib.capture.sessions.active import active_session
from tests.docs.blocks import Block, Command
from tests.warm import warm_python

__all__ = ["Reader", "check_said", "reading_in"]

LIMIT = 240
SERVED = "127.0.0.1:50051"
MEASURED = "127.0.0.1:9464"
VARIABLE = r"[A-Z_][A-Z0-9_]*=\S*"
FOR_A_SHELL = re.compile(r"[|;&<>$`(){}~]|…")


def free_address() -> str:
    """An address of this machine where nobody listens at present."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@dataclass
class Reader:
    """Follows the blocks of one page.

    heard: gives what the last command said, to be compared with what the page shows of it; None
    where the page shows examples.
    """

    patch: pytest.MonkeyPatch
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    collectors: list[subprocess.Popen[str]] = field(default_factory=list)
    others: list[subprocess.Popen[str]] = field(default_factory=list)
    served: dict[str, str] = field(default_factory=dict)
    metrics: str = field(default_factory=free_address)
    heard: Callable[[], str] | None = None

    def follow(self, block: Block) -> None:
        """Run a block; raise AssertionError if a command's exit code is not that on the page."""
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            code = "\n" * block.line + block.text
            exec(compile(code, block.page, "exec"), self.names)
        else:
            for command in block.commands:
                self.type(command)

    def type(self, command: Command) -> None:
        """Run one command and compare its exit code."""
        text = command.text.replace(MEASURED, self.metrics)
        if text.startswith("anchor serve") and "--check" not in text:
            self._serve(text)
            return
        if text.startswith("dask scheduler"):
            self._schedule(text)
            return
        for told, address in self.served.items():
            text = text.replace(told, address)
        if text.startswith("dask worker"):
            self._leave_running(text)
        elif found := re.fullmatch(rf"export ((?:{VARIABLE} ?)+)", text):
            self._export(found[1].split())
        else:
            hear = self.heard or (lambda: command.said)
            hear()  # what the blocks before said
            assert self._run(text) == command.code, command.text
            check_said(command, hear())

    def leave(self) -> None:
        """End the processes that the page started; collectors answer SIGTERM with 0."""
        for one in reversed(self.others):
            with one:
                one.terminate()
        for collector in self.collectors:
            collector.send_signal(signal.SIGTERM)
        for collector in self.collectors:
            with collector:  # closes its pipe
                assert collector.wait(LIMIT) == 0

    def _export(self, variables: list[str]) -> None:
        for variable in variables:
            name, _, value = variable.partition("=")
            self.patch.setenv(name, value)

    def _run(self, text: str) -> int:
        if FOR_A_SHELL.search(re.sub(r"'[^']*'", "", text)):
            return _bash(text)
        words = shlex.split(text, comments=True)
        with self.patch.context() as here:
            while words and re.fullmatch(VARIABLE, words[0]):
                name, _, value = words.pop(0).partition("=")
                here.setenv(name, value)
            if words[:1] == ["anchor"]:
                return main(words[1:])
            if words[:1] == ["python"] and len(words) > 1 and words[1].endswith(".py"):
                here.setattr(sys, "argv", words[1:])
                here.setattr(sys, "orig_argv", words)
                return _script(words[1])
        return _bash(text)

    def _serve(self, text: str) -> None:
        collector = subprocess.Popen(
            [*shlex.split(text), "--bind", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        self.collectors.append(collector)
        assert collector.stdout is not None
        found = re.search(r"(?:collecting|serving) on (\S+) ", collector.stdout.readline())
        assert found is not None, text
        bind = re.search(r"--bind (\S+)", text)
        self.served[bind[1] if bind else SERVED] = found[1]

    def _schedule(self, text: str) -> None:
        found = re.search(r"--host (\S+) --port (\d+)", text)
        assert found is not None, text
        scheduler = self._leave_running(text.replace(found[2], "0"))
        assert scheduler.stderr is not None
        for line in scheduler.stderr:
            if at := re.search(r"Scheduler at: +tcp://(\S+)", line):
                self.served[f"{found[1]}:{found[2]}"] = at[1]
                return
        raise AssertionError(text)

    def _leave_running(self, text: str) -> subprocess.Popen[str]:
        words = shlex.split(text.removesuffix("&"))
        self.others.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        return self.others[-1]


def check_said(command: Command, said: str) -> None:
    """Raises AssertionError where a command said other words than the page shows.

    Numbers, bars and line ends depend on the machine, and are not compared. "…" stands for what is
    left out.
    """
    shown, cut, _ = command.said.partition("…")
    told, wanted = _words(said), _words(shown)
    if command.said.strip():
        assert (told[: len(wanted)] if cut else told) == wanted, command.text


def _words(said: str) -> list[str]:
    return [re.sub(r"#+", "#", re.sub(r"<?\d[\d,.]*", "0", word)) for word in said.split()]


def _script(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        if (session := active_session()) is not None:  # as a process closes it that ends
            session.close()
    return 0


def _bash(text: str) -> int:
    return subprocess.run(["bash", "-c", text], timeout=LIMIT, check=False).returncode


@contextlib.contextmanager
def reading_in(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder, in whose shell nothing of ours is set but the path."""
    for name in [name for name in os.environ if name.startswith(("ANCHOR_", "TORCHELASTIC_"))]:
        patch.delenv(name)
    folders = [Path(warm_python()).parent, Path(sys.executable).parent, os.environ["PATH"]]
    patch.setenv("PATH", os.pathsep.join(map(str, folders)))
    patch.setenv("OMP_NUM_THREADS", "1")  # else torchrun says that it sets it
    patch.chdir(folder)
    reader = Reader(patch)
    try:
        yield reader
    finally:
        reader.leave()
