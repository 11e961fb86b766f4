"""Digests, in the headers, of the starting values of parameters and buffers without records.

    starts   {"fc2.weight": [0, "9f3a0c51d2b7e684"], …}    step, and 64 bits of the digest

Where two runs begin with other values of a tensor that neither records, they part at the first
operation that reads it, which is not the cause. These digests show the cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from anchorlib.diagnosis.pairing import Alignment
from anchorlib.names import escape

__all__ = ["STARTS", "StartingValues", "starting_values"]

STARTS: Final = "starts"
"""The header entry of these digests."""

_SHOWN: Final = 8  # hex digits of a digest
_NAMED: Final = 3  # tensors that are listed each by its name


@dataclass(frozen=True, slots=True)
class StartingValues:
    """Which tensors without records began equal, and which unequal, by (rank, A's name).

    equal: tensors whose digests are equal in both runs.
    unequal: (rank, name) → the digests of A and of B, as hex.
    """

    equal: frozenset[tuple[int, str]]
    unequal: Mapping[tuple[int, str], tuple[str, str]]

    def entries(self, rank: int) -> dict[str, tuple[str, str]]:
        """Return the differences of one rank as header entries: name -> (A's digest, B's).

        Digests are shortened for people. More than three tensors are counted in one entry, with the
        digests of the first.
        """
        own = {name: both for (of, name), both in self.unequal.items() if of == rank}
        shown = {name: (a[:_SHOWN], b[:_SHOWN]) for name, (a, b) in own.items()}
        if len(own) <= _NAMED:
            return {f"{escape(name)} at the start": both for name, both in shown.items()}
        known = len(own) + sum(of == rank for of, _ in self.equal)
        first, both = next(iter(shown.items()))
        what = f"{len(own):,} of {known:,} parameters and buffers at the start"
        return {what: (f"{escape(first)} {both[0]}, …", f"{both[1]}, …")}


def starting_values(alignment: Alignment) -> StartingValues:
    """Return which starting values are equal in both runs and which differ, by their digests.

    The ranks are those that both runs have. A tensor counts where both runs state its digest for
    the same step. Where passes or ranks were merged, no tensor counts.
    """
    equal: set[tuple[int, str]] = set()
    unequal: dict[tuple[int, str], tuple[str, str]] = {}
    if alignment.merged:
        return StartingValues(frozenset(), {})
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
    for rank in sorted(alignment.a.header.keys() & alignment.b.header.keys()):
        of_a, of_b = (_stated(table.header[rank]) for table in (alignment.a, alignment.b))
        for name, (step, digest) in of_a.items():
            other = of_b.get(names.get(name, name))
            if other is None or other[0] != step + alignment.step_offset:
                continue
            if digest == other[1]:
                equal.add((rank, name))
            else:
                unequal[rank, name] = (digest, other[1])
    return StartingValues(frozenset(equal), unequal)


def _stated(header: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Return the starting values that a header states: name -> (step, digest).

    Malformed entries are left out, since anyone may have written a store.
    """
    entry = header.get(STARTS)
    if not isinstance(entry, dict):
        return {}
    return {
        str(name): (one[0], one[1])
        for name, one in entry.items()
        if isinstance(one, list) and [type(part) for part in one] == [int, str]
    }
