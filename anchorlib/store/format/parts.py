"""Parts: the pieces of one rank that several collectors hold, each under a name of its own.

    rank3      the part that the first collector holds, in rank 3's own order by hash
    rank3.p1   the part that the second collector holds

A run with one collector has `rank3` alone. Names differ, so that the stores of several collectors
may be copied together into one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["ANEW", "Begins", "Part"]

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
