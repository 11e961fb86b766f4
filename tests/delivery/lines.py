"""Shared by the delivery tests: records by number, sinks with a spool, a proxy that misbehaves."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anchorlib.record import Coordinates, Record
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool.delivery import DeliveryResult, deliver
from anchorlib.summary import summarise
from tests.server.pushing import stored

NAMES = ("fc1", "fc2.bias", "a/b\n", "\u202eevil")


def numbered(number: int, most: int = 600) -> Record:
    """Record `number`: its name, size and values follow from its number alone."""
    chance = random.Random(number)
    size = chance.choice([0, 1, 3, 40, chance.randrange(most + 1)])
    raw = (np.arange(size, dtype="<i8") * 7919 + number).astype("<f4")
    name = NAMES[chance.randrange(len(NAMES))]
    where = Coordinates(number)
    summary = summarise(raw, "float32")
    return Record(name, "grad", "all", where, number, number, "float32", (size,), raw, summary)


def told(record: Record) -> tuple[str, int, bytes]:
    """A record as `stored` tells it."""
    assert record.raw is not None
    return record.name, record.coordinates.step, record.raw.tobytes()


def check_store(store: Path, least: int, most: int = 600, run: str = "run1", rank: int = 0) -> int:
    """Check that a store has each record from 0 on once, in order, bit for bit, `least` or more.

    Returns how many there are.
    """
    found = stored(store, run, rank)
    assert found == [told(numbered(number, most)) for number in range(len(found))]
    assert len(found) >= least, (len(found), least)
    return len(found)


def sink_to(address: str, place: Path, **options) -> RemoteSink:
    """A sink whose spool is below `place`."""
    told = RunOptions("run1", 0, {"seed": 1}, **options)
    return RemoteSink(f"grpc://{address}", told, spool=place)


def push(folder: Path, to: object, patience: float = 20.0) -> DeliveryResult:
    """Deliver a spool as `anchor push` does."""
    return deliver(folder, str(to), patience=patience, progress=lambda done, total: None)


def spools(place: Path) -> list[Path]:
    """The spools below `place`."""
    return sorted(path for path in place.glob("*") if not path.name.startswith("."))


def free_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Proxy:
    """A line to 127.0.0.1:`to` that can be cut, swallow everything, be slow, or flip bits.

    flips: bits that are still to be turned over, each at a place of the stream that `chance` picks,
        in either direction; `flipped` were.

    At most 64 connections, two threads each; all are gone when the context is left.
    """

    def __init__(self, to: int, chance: random.Random | None = None) -> None:
        self.to = to
        self.flips = self.flipped = 0
        self._chance = chance or random.Random(0)
        self.mode = "pass"  # or "blackhole", "slow"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections as a broken line does."""
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs = []

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.cut()
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if len(self._pairs) >= 64:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=1)
            except OSError:
                near.close()
                continue
            near.settimeout(0.05)
            far.settimeout(0.05)
            self._pairs.append((near, far))
            self._start(self._carry, near, far)
            self._start(self._carry, far, near)

    def _flip(self, data: bytes) -> bytes:
        # Not each time: what is said first, and what is said last, has to be hit too.
        if self._chance.random() < 0.5:
            return data
        self.flips -= 1
        self.flipped += 1
        place = self._chance.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        return bytes(damaged)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while not self._over.is_set():
                try:
                    data = source.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                if self.mode == "slow":
                    time.sleep(0.03)
                if self.flips:
                    data = self._flip(data)
                if self.mode != "blackhole":
                    target.settimeout(5)
                    target.sendall(data)
                    target.settimeout(0.05)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def eventually(seconds: float = 20.0) -> Iterator[object]:
    """A clock: `assert now()` inside a loop fails once the time is over."""
    deadline = time.monotonic() + seconds

    def now() -> bool:
        time.sleep(0.005)
        return time.monotonic() < deadline

    yield now
