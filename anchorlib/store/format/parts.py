"""Parts: where several collectors share one rank, the piece of the rank that each of them holds.

    rank3      the part held by the first collector in rank 3's order (which a hash decides)
    rank3.p1   the part held by the second collector in that order

A run with one collector has `rank3` alone. The names differ, so that the stores of several
collectors may be copied together into one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["ANEW", "Begins", "Part"]

Begins: TypeAlias = Literal["", "new", "anew", "resumed"]
"""How an attempt began whose rank several collectors share: "new" under a name that no run had,
"anew" in place of earlier records, "resumed" behind them; "" where there is one collector."""

ANEW: Final = "anew"


@dataclass(frozen=True, slots=True)
class Part:
    """The piece of a rank that a writer writes into the store of one of several collectors.

    number: the position of this collector in the rank's order of collectors, from 0.

    first: the number of the first record that is written here, as the writer counts the records
        that it sends to any collector.

    restart: how often the job was restarted, as its launcher counts; None where the launcher does
        not count.
    """

    number: int = 0
    first: int = 0
    restart: int | None = None
