"""One trainer's life, told through a folder: what it is to do, how far it came, who recorded it.

order.json   what it is to do
marks        a byte for each of its records, three times: begun, anchored, put; in memory that
             all its processes share, and that outlives them
recorders    a line for each thing that a recorder process has to say of itself
errors       what all of them wrote to stderr
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

LIFE = "CHAOS_LIFE"
PLANES = ("begun", "anchored", "put")
DEATHS = {
    "killed": signal.SIGKILL,
    "by a segmentation fault": signal.SIGSEGV,
    "aborted": signal.SIGABRT,
    "out without a word": 0,
}
# gRPC's own abort of a process, at a GOAWAY whose error code is none: a flipped bit is enough.
_GRPC_ABORTS = "http2_status.h"
EXIT = 3  # of a trainer that is out without a word


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a trainer: anchor records FIRST … LAST - 1 within about `seconds`.

    death: of itself, see `DEATHS`, when it comes to record `dies_at`; "" is none.
    point: where its first recorder dies, or it itself if a thread records: POINT:COUNT, or "".
    """

    store: str
    place: Literal["process", "thread"]
    first: int
    last: int
    seed: int
    resume: bool
    queue_bytes: int
    durability: Literal["process", "power"]
    seconds: float
    death: str = ""
    dies_at: int = -1
    point: str = ""

    @classmethod
    def read(cls, folder: Path) -> Order:
        return cls(**json.loads((folder / "order.json").read_text()))

    def write(self, folder: Path) -> None:
        (folder / "order.json").write_text(json.dumps(asdict(self)))


class Marks:
    """The marks of a life."""

    def __init__(self, folder: Path) -> None:
        order = Order.read(folder)
        self._first, self._count = order.first, order.last - order.first
        file = os.open(folder / "marks", os.O_RDWR | os.O_CREAT)
        os.truncate(file, max(1, self._count * len(PLANES)))
        self._memory = mmap.mmap(file, 0)
        os.close(file)

    def set(self, plane: str, numbers: Iterable[int]) -> None:
        base = PLANES.index(plane) * self._count - self._first
        for number in numbers:
            self._memory[base + number] = 1

    def numbers(self, plane: str) -> set[int]:
        """The numbers of the records that have the mark."""
        start = PLANES.index(plane) * self._count
        found = self._memory[start : start + self._count]
        return {self._first + at for at, mark in enumerate(found) if mark}


def note(folder: Path, what: str) -> bool:
    """Note what a recorder process says of itself; return whether it is the first note."""
    file = os.open(folder / "recorders", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    before = os.fstat(file).st_size
    os.write(file, f"{what} {os.getpid()}\n".encode())
    os.close(file)
    return before == 0


class Life:
    """A trainer and its recorders, as processes below this one."""

    def __init__(self, folder: Path, order: Order, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        order.write(folder)
        self.order = order
        self.folder = folder
        self.marks = Marks(folder)
        self.killed: set[int] = set()  # recorders, from outside
        command = [sys.executable, "-m", "tests.delivery.anchoring", str(folder)]
        environment = os.environ | environment | {LIFE: str(folder)}
        with (folder / "errors").open("wb") as errors:
            self.trainer = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, env=environment
            )

    @property
    def has_begun(self) -> bool:
        return bool(self.marks.numbers("begun"))

    def recorders(self) -> list[int]:
        """Recorder processes that live, orphans too; one that is being started is among them."""
        found = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
        return [pid for pid in found if self._is_recorder(pid)]

    def _is_recorder(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        ours = f"{LIFE}={self.folder}".encode() in environment.split(b"\0")
        return ours and pid != self.trainer.pid

    def kill_recorder(self) -> bool:
        """Kill the recorders of this trainer; return whether there were any."""
        found = self.recorders()
        for pid in found:
            self.killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(found)

    # -- what is known of it once all its processes have ended

    @property
    def has_drained(self) -> bool:
        """Whether all that was anchored had to reach the sink: the session was closed, or a
        recorder outlived its trainer and ended by itself.
        """
        return self.trainer.returncode == 0 or any(what == "ended" for what, _ in self._said())

    def owed(self) -> set[int]:
        """The numbers of the records that must be stored."""
        put = self.marks.numbers("put")
        return put | self.marks.numbers("anchored") if self.has_drained else put

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text(errors="replace")

    @property
    def aborts(self) -> int:
        """How many of the life's processes gRPC aborted."""
        return self.errors.count(_GRPC_ABORTS)

    def faults(self) -> list[str]:
        """The ends of processes that the test did not cause."""
        code, said = self.trainer.returncode, self._said()
        found = ["an exception came through"] * self.errors.count("Traceback")
        if code not in {0, EXIT, *(-one for one in DEATHS.values())}:
            found.append(f"a trainer ended with {code}")
        begun = [pid for what, pid in said if what == "begun"]
        ends = self.killed | {pid for what, pid in said if what != "begun"}
        lost = [pid for pid in begun if pid not in ends]
        return found + [f"recorder {pid} ended for no reason" for pid in lost[self.aborts :]]

    def _said(self) -> list[tuple[str, int]]:
        try:
            lines = (self.folder / "recorders").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(what, int(pid)) for what, pid in map(str.split, lines)]
