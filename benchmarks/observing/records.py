"""The cost of one record: a small value, a first record, one of many series, a large value."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import anchorlib
from benchmarks.calls import collector
from benchmarks.figures import Figure
from benchmarks.observing.targets import (
    BOTH,
    COPIES,
    INODES,
    RECORDS,
    THREAD,
    TRAINER,
    cell,
)
from benchmarks.observing.turns import Arm, Turn, taken, taken_in_turns, told

__all__ = ["copies", "inodes_below", "many_series", "values"]

SERIES = 300  # of small values
BURSTS = 20  # between two flushes
SIZES = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
SHAPES = [(8, 8), (64,), (16, 16), (10, 10), (128,), (32, 8), (256,), (1,), (4, 4), (100,)]
MANY = 10_000
FLUSHES = 5
RUNS = 3
MIB = 1 << 20
LEAST = 4  # large values between two flushes
PLACES = 64 << 20  # bytes that plain copies go round in


def values(folder: Path, rounds: int) -> Iterator[Figure]:
    """8x8 values, into a directory and to a collector in another process."""
    os.environ["ANCHOR_SPOOL"] = str(folder / "spools")
    xs = [torch.randn(8, 8) for _ in range(SERIES)]
    for where, row in (("embedded", "8x8 value"), ("remote", "8x8 value, remote")):
        with (
            collector(folder / where, where) as store,
            anchorlib.start("values", store=store) as session,
        ):
            arm = Arm(bursts(session, xs, BURSTS), session.flush)
            turns = taken_in_turns({"anchors": arm}, rounds)["anchors"]
        # The collector is a child of this process as well: nobody can tell what the recorder's is.
        columns = (THREAD, TRAINER, BOTH) if where == "embedded" else (THREAD, TRAINER)
        yield from a_record(row, turns, SERIES * BURSTS, columns)


def many_series(folder: Path, rounds: int) -> Iterator[Figure]:
    """The first record of each of many series, then one of each between flushes; and the files."""
    xs = [torch.randn(SHAPES[number % len(SHAPES)]) for number in range(MANY)]
    firsts, later = [], []
    for number in range(min(rounds, RUNS)):
        store = folder / f"many{number}"
        with anchorlib.start("many", store=store) as session:
            arm = Arm(bursts(session, xs, 1), session.flush)
            firsts.append(taken(arm))
            later.append(taken(arm))
            inodes = inodes_below(store)
            later += [taken(arm) for _ in range(FLUSHES - 2)]
    columns = (THREAD, TRAINER, BOTH)
    yield from a_record("first record of a new series", firsts, MANY, columns)
    yield from a_record("10,000 series, a record a flush", later, MANY, columns)
    yield cell(INODES, "10,000 tensors, 2 steps", "inodes", told([inodes]), "")


def bursts(session: anchorlib.Session, xs: list[torch.Tensor], count: int) -> Callable[[], None]:
    """So many steps in each of which every tensor is anchored once."""
    named = [(f"model.layers.{number}.h", x) for number, x in enumerate(xs)]

    def work() -> None:
        for _ in range(count):
            for name, x in named:
                anchorlib.anchor(x, name)
            session.step()

    return work


def a_record(
    row: str, turns: list[Turn], records: int, columns: tuple[str, ...]
) -> Iterator[Figure]:
    """Microseconds for each record."""
    clocks = {THREAD: "thread", TRAINER: "trainer", BOTH: "both"}
    for column in columns:
        costs = [1e6 * getattr(turn, clocks[column]) / records for turn in turns]
        yield cell(RECORDS, row, column, told(costs), "µs")


def copies(folder: Path, rounds: int) -> Iterator[Figure]:
    """Large values while the recorder keeps up: all are stored before the next few are anchored."""
    places = np.ones(PLACES, np.uint8)
    for size, nbytes in SIZES.items():
        x, few = torch.rand(nbytes // 4), max(LEAST, MIB // nbytes)
        name = size.replace(" ", "")
        with anchorlib.start(name, store=folder / "copies") as session:
            pairs = Copies(x, few, places.reshape(-1, nbytes), session)
            ratios = [pairs.ratio() for _ in range(5 * rounds + 2)][2:]
        yield cell(COPIES, size, THREAD, told(ratios))


class Copies:
    """A few anchors of `x`, and as many plain copies to places that are as warm as the ring's.

    Those are the next of `places`, which are many enough to be in memory rather than in a cache.
    Before either begins this thread has waited for the store.
    """

    def __init__(
        self, x: torch.Tensor, few: int, places: np.ndarray, session: anchorlib.Session
    ) -> None:
        self._x, self._few, self._session = x, few, session
        self._source = x.numpy().view(np.uint8)
        self._places, self._next = places, 0

    def ratio(self) -> float:
        """Thread CPU of the anchors over that of the copies."""
        copies = self._timed(self._copy)
        return self._timed(self._anchor) / copies

    def _timed(self, work: Callable[[], None]) -> float:
        self._anchor()
        self._session.flush()
        since = time.thread_time()
        for _ in range(self._few):
            work()
        return time.thread_time() - since

    def _anchor(self) -> None:
        anchorlib.anchor(self._x, "x", grad=False)

    def _copy(self) -> None:
        np.copyto(self._places[self._next], self._source)
        self._next = (self._next + 1) % len(self._places)


def inodes_below(folder: Path) -> int:
    """Files and directories."""
    return sum(len(files) + len(below) for _, below, files in os.walk(folder))
