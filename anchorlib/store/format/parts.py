"""Parts: the pieces of one rank that several collectors hold, each under a name of its own.

    rank3      what the first collector by hash has of rank 3, or the one there is
    rank3.p1   what the second one has

Names differ, so that stores of several collectors may be put together in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from anchorlib.store.read import RankReader

__all__ = ["ANEW", "Begins", "Part", "is_whole"]

Begins: TypeAlias = Literal["", "new", "anew", "resumed"]
"""How an attempt began that is spread over collectors: with a name that nobody had, in place of
what was recorded before, or behind it; "" of an attempt that is not spread."""

ANEW: Final = "anew"


@dataclass(frozen=True, slots=True)
class Part:
    """Which piece of a rank a writer writes.

    number: the place of this collector in the rank's order of them.
    first: the number of the first record that is written here now.
    restart: how often the job was restarted, as its launcher counts; None where it does not.
    """

    number: int = 0
    first: int = 0
    restart: int | None = None


def is_whole(parts: Sequence[RankReader]) -> bool:
    """Whether one part is the rank as it is: there is no other, and it has its first records."""
    attempts = parts[0].catalogue.attempts
    return len(parts) == 1 and not any(one.first for one in attempts) and not parts[0].part
