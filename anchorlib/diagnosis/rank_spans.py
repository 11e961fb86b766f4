"""Which ranks of two runs were compared and which differ, with neighbours written as spans.

"0-1023" stands for all ranks from 0 to 1023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anchorlib.peers import ranks_text

if TYPE_CHECKING:
    from anchorlib.diagnosis.pairing import Alignment

__all__ = ["Ranks", "ranks_line", "ranks_of"]

NAMED = 8


class Ranks(NamedTuple):
    """The ranks of a comparison, each tuple ascending.

    compared: ranks that have records in both runs. differing: those with a record that differs.
    """

    compared: tuple[int, ...]
    differing: tuple[int, ...]

    def to_dict(self) -> dict[str, str]:
        """Return both tuples as text: {"compared": "0-1023", "differing": "17,512,600"}."""
        return {name: _spans(ranks) for name, ranks in self._asdict().items()}


def ranks_of(alignment: Alignment | None) -> Ranks | None:
    """Return the ranks of the matched records; None where fewer than two ranks were compared."""
    if alignment is None or not len(alignment):
        return None
    a = alignment.a
    ranks = a.rank[alignment.a_row]
    compared = tuple(np.unique(ranks).tolist())
    if len(compared) < 2:
        return None
    return Ranks(compared, tuple(np.unique(ranks[~alignment.equal]).tolist()))


def ranks_line(ranks: Ranks | None) -> str:
    """Return the ranks in words, such as "ranks 0-1023, 3 differ (17, 512, 600)"; "" for None."""
    if ranks is None:
        return ""
    count = len(ranks.differing)
    if not count:
        return f"{ranks_text(ranks.compared)}, none differs"
    if count == len(ranks.compared):
        return f"{ranks_text(ranks.compared)}, all differ"
    some = ", ".join(map(str, ranks.differing[:NAMED]))
    more = f" and {count - NAMED:,} more" if count > NAMED else ""
    return f"{ranks_text(ranks.compared)}, {count:,} differ{'s' * (count == 1)} ({some}{more})"


def _spans(ranks: tuple[int, ...]) -> str:
    return ranks_text(ranks).partition(" ")[2] if ranks else ""
