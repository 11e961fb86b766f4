"""Ranks without training, many in one process: each puts numbered records into a sink of its own.

    python -m tests.delivery.soaking FOLDER…

Each FOLDER is that of one rank's life (`tests.delivery.lives`); what its sink has taken is marked.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anchorlib.block import block_of
from anchorlib.sinks import RunOptions
from anchorlib.sinks.remote import RemoteSink
from tests.delivery.lines import numbered
from tests.delivery.lives import Marks, Order

RUN, RANK = "SOAK_RUN", "SOAK_FIRST_RANK"
CLOSE_SECONDS = 60.0
_MOST = 12  # records that are put at once


class Rank:
    """One rank: its order, its sink, and how far it is."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.order = order = Order.read(folder)
        self._marks = Marks(folder)
        self._chance = random.Random(order.seed)
        self._next = order.first
        options = RunOptions(
            os.environ[RUN], rank, {"seed": 1}, resume=order.resume, durability=order.durability
        )
        self.sink = RemoteSink(order.store, options, spool=Path(os.environ["ANCHOR_SPOOL"]))

    @property
    def is_over(self) -> bool:
        return self._next >= self.order.last

    def put(self) -> None:
        """Put the next few records."""
        end = min(self._next + self._chance.randrange(1, _MOST), self.order.last)
        numbers = range(self._next, end)
        self._marks.set("begun", numbers)
        self.sink.put(block_of([numbered(number) for number in numbers]))
        self._marks.set("put", numbers)
        self._next = end
        if self._chance.random() < 0.02:
            self.sink.flush()


def main(folders: Sequence[str]) -> int:
    """Put the records of the orders and close each rank.

    Returns how many records are neither stored nor spooled.
    """
    first = int(os.environ[RANK])
    ranks = [Rank(Path(folder), first + at) for at, folder in enumerate(folders)]
    seconds = ranks[0].order.seconds
    rounds = max(1, (ranks[0].order.last - ranks[0].order.first) // (_MOST // 2))
    while not all(rank.is_over for rank in ranks):
        for rank in ranks:
            if not rank.is_over:
                rank.put()
        time.sleep(seconds / rounds)
    with ThreadPoolExecutor(len(ranks)) as closers:
        return sum(closers.map(lambda rank: rank.sink.close(CLOSE_SECONDS), ranks))


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
