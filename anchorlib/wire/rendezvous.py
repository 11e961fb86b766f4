"""Chooses which of several collectors records a rank, and which takes over if that one is away.

    by_hash((a, b, c), "run1", 3)  ─▶ (c, a, b)      rank 3 begins at c, and goes on at a

Each collector is weighted by a hash of its address, the run's name and the rank (rendezvous
hashing). So the order in which collectors are listed does not matter, and no service has to assign
ranks. If a collector is added, only the ranks that it gets move; if one is removed, only the ranks
that it had.
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
_MOST_ROUNDS: Final = 6  # rounds after which `Route.seconds` is not doubled any more


def by_hash(collectors: Sequence[Address], run: str, rank: int) -> tuple[Address, ...]:
    """Return the collectors in the order in which a rank of a run tries them.

    They are sorted by the xxh3-64 of `host:port` (lower case), the run's name, and the rank in
    decimal, joined by zero bytes; the highest comes first.
    """

    def weight(one: Address) -> tuple[int, str]:
        key = "\0".join((one.target.lower(), run, str(rank)))
        return xxhash.xxh3_64_intdigest(key.encode()), one.target.lower()

    return tuple(sorted(collectors, key=weight, reverse=True))


def failover_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Return for how many seconds a collector may be away before its ranks go on at the next one.

    This is ANCHOR_FAILOVER_SECONDS, or 30 without that variable. Raises OptionError if its value is
    no number from 0.1 to 86,400.
    """
    variable = environ.get(_VARIABLE)
    if not variable:
        return FAILOVER_SECONDS
    try:
        seconds = float(variable)
    except ValueError:
        seconds = math.nan
    if not _LEAST <= seconds <= _MOST:
        raise OptionError(
            f"{_VARIABLE}='{escape(variable[:80])}' is no number of seconds from {_LEAST:g} to "
            f"{_MOST:g}; write 30"
        )
    return seconds


class Route:
    """The collectors of one rank, in the order in which the rank tries them, and the present one.

    seconds: how long a collector may stay away before the rank moves to the next. None means as
        long as ANCHOR_FAILOVER_SECONDS says, or for ever if there is only one collector.

    order: the collectors, in the order in which the rank tries them.
    part: the index in `order` of the present collector, to which the rank's records go now.
    has_moved: whether the rank has moved from one collector to another so far.
    """

    def __init__(
        self, collectors: Sequence[Address], run: str, rank: int, seconds: float | None = None
    ) -> None:
        self.order = by_hash([replace(one, run=None) for one in collectors], run, rank)
        self.part = 0
        if seconds is None:
            seconds = failover_seconds() if self.is_spread else math.inf
        self._seconds = seconds
        self._vain = 0  # moves since a collector last acknowledged records
        self.has_moved = False

    @property
    def address(self) -> Address:
        """The address of the collector that the rank's records go to now."""
        return self.order[self.part]

    @property
    def is_spread(self) -> bool:
        """Whether the rank has several collectors to choose from."""
        return len(self.order) > 1

    @property
    def seconds(self) -> float:
        """How many seconds the present collector may stay away before the rank moves to the next.

        The time doubles, at most six times, after each round through all collectors in which none
        acknowledged records: a rank that left slow collectors too early would never deliver
        anything.
        """
        return self._seconds * 2.0 ** min(self._vain // len(self.order), _MOST_ROUNDS)

    @property
    def among(self) -> str:
        """The URL that names all collectors; "" if there is only one."""
        return list_text(self.order) if self.is_spread else ""

    def move(self) -> None:
        """Make the next collector the present one; after the last comes the first again."""
        self.part = (self.part + 1) % len(self.order)
        self._vain += 1
        self.has_moved = True

    def note_progress(self) -> None:
        """Note that the present collector has acknowledged records, which resets `seconds`."""
        self._vain = 0
