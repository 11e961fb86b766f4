"""Parts: the pieces of one rank that several collectors hold, each under a name of its own.

    rank3      the part that the first collector holds, in rank 3's own order by hash
    rank3.p1   the part that the second collector holds

A run with one collector has `rank3` alone. Names differ, so that the stores of several collectors
may be copied together into one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from anchorlib.store.read import RankReader

__all__ = ["ANEW", "Begins", "Part", "is_whole"]

Begins: TypeAlias = Literal["", "new", "anew", "resumed"]
"""How an attempt began that is spread over collectors: "new" under a name that no run had, "anew"
in place of earlier records, "resumed" behind them; "" for an attempt with one collector."""

ANEW: Final = "anew"


@dataclass(frozen=True, slots=True)
class Part:
    """The piece of a rank that a writer writes into the store of one collector.

    number: the place of this collector in the rank's order of collectors.
    first: the number of the first record that the writer now writes here.
    restart: how often the job was restarted, as its launcher counts; None where it does not count.
    """

    number: int = 0
    first: int = 0
    restart: int | None = None


def is_whole(parts: Sequence[RankReader]) -> bool:
    """Whether these parts are one part that is the whole rank: number 0, from the first record."""
    attempts = parts[0].catalogue.attempts
    return len(parts) == 1 and not any(one.first for one in attempts) and not parts[0].part
