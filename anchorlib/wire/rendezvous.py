"""Which of several collectors a rank is at: the first by hash, then the next where that stays away.

    by_hash((a, b, c), "run1", 3)  ─▶ (c, a, b)      rank 3 begins at c, and goes on at a

Each collector gets a number from its own name, the run's and the rank's (rendezvous hashing): the
order of the list does not matter, nobody has to be asked, and where a collector is added or taken
away only those ranks move that it had or gets.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import xxhash

from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.wire.address import Address, list_text

__all__ = ["FAILOVER_SECONDS", "Route", "by_hash", "failover_seconds"]

FAILOVER_SECONDS: Final = 30.0
_VARIABLE: Final = "ANCHOR_FAILOVER_SECONDS"
_LEAST: Final = 0.1
_MOST: Final = 86_400.0
_MOST_ROUNDS: Final = 6  # after which the time is not doubled any more


def by_hash(collectors: Sequence[Address], run: str, rank: int) -> tuple[Address, ...]:
    """The collectors in the order in which this rank goes to them.

    The highest xxh3-64 of `host:port`, the run and the rank in decimal, with a zero byte between
    each two of them, comes first.
    """

    def weight(one: Address) -> tuple[int, str]:
        told = "\0".join((one.target.lower(), run, str(rank)))
        return xxhash.xxh3_64_intdigest(told.encode()), one.target.lower()

    return tuple(sorted(collectors, key=weight, reverse=True))


def failover_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """How long a collector may stay away before its ranks go on at the next one, in seconds.

    Raises OptionError where ANCHOR_FAILOVER_SECONDS is no such number.
    """
    told = environ.get(_VARIABLE)
    if not told:
        return FAILOVER_SECONDS
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not _LEAST <= seconds <= _MOST:
        raise OptionError(
            f"{_VARIABLE}='{escape(told[:80])}' is no number of seconds from {_LEAST:g} to "
            f"{_MOST:g}; write 30"
        )
    return seconds


class Route:
    """The collectors of one rank in their order, and the one that it is at.

    part: the place of that one in the order. has_moved: whether the rank was at another before.
    seconds: how long one may stay away; None takes the environment's word, and of a collector that
        is alone any time.
    """

    def __init__(
        self, collectors: Sequence[Address], run: str, rank: int, seconds: float | None = None
    ) -> None:
        self.order = by_hash([replace(one, run=None) for one in collectors], run, rank)
        self.part = 0
        if seconds is None:
            seconds = failover_seconds() if self.is_spread else math.inf
        self._seconds = seconds
        self._vain = 0  # moves since somebody acknowledged something
        self.has_moved = False

    @property
    def address(self) -> Address:
        """Of the collector that the rank is at."""
        return self.order[self.part]

    @property
    def is_spread(self) -> bool:
        """Whether there are others."""
        return len(self.order) > 1

    @property
    def seconds(self) -> float:
        """How long this one may stay away.

        Twice as long after each round in which nobody acknowledged anything: where all of them are
        slow, a rank that hurries from one to the next would never get on.
        """
        return self._seconds * 2.0 ** min(self._vain // len(self.order), _MOST_ROUNDS)

    @property
    def among(self) -> str:
        """All of them as one text; empty where there is one."""
        return list_text(self.order) if self.is_spread else ""

    def move(self) -> None:
        """The rank goes on at the next one; behind the last comes the first."""
        self.part = (self.part + 1) % len(self.order)
        self._vain += 1
        self.has_moved = True

    def get_on(self) -> None:
        """The one that it is at has acknowledged something."""
        self._vain = 0
