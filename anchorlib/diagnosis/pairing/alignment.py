"""The alignment: the pairs of records of two runs, and the renamings that led to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.splits import Merged
from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["Alignment", "Counts", "Renaming"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Renaming:
    """One tensor that has different names in the two runs, and how the names were matched.

    a, b: the names in A and in B.
    how: "map" (the user's file), "wrapper" (a prefix that a wrapper or a `prefix=` added),
        "operations" (equal places in the graphs of operations), "digest" (equal bits at the first
        step), "guess" (equal shapes and norms that are nearly equal, and no other name would do as
        well: shown to people, and nothing is concluded from it; see `Alignment.guessed`).
    """

    a: str
    b: str
    how: str


@dataclass(frozen=True, slots=True)
class Alignment:
    """The records of two runs in pairs, in A's order of execution (rank, order).

    Records are paired by names and coordinates, never by the order in which they arrived.

    a, b: the tables of the two runs. a_row, b_row: the rows of each pair in these tables.
    equal: whether dtype, shape and digest of a pair are equal.
    only_a, only_b: rows that found no partner.
    renamed: the tensors that have different names in the two runs.
    step_offset: a record of A at step s stands for a record of B at step s + step_offset.
    eval_since: for A and for B, the step, in that run's own count, from which the run was in eval
        mode while the other run trained; None where it never was.
    merged: which passes or ranks of a run were merged, where the two split their work differently.
    reordered: the first step, in B's count, whose samples were put in A's order; else None.
    perhaps_clipped: whether B's `scale` may be a factor that clipping removes, and no loss scale.
    """

    a: Table
    b: Table
    a_row: Array
    b_row: Array
    equal: Array
    only_a: Array
    only_b: Array
    renamed: tuple[Renaming, ...] = ()
    step_offset: int = 0
    eval_since: tuple[int | None, int | None] = (None, None)
    merged: tuple[Merged, ...] = ()
    reordered: int | None = None
    perhaps_clipped: bool = False

    def __len__(self) -> int:
        return len(self.a_row)

    @property
    def differing(self) -> Array:
        """The indices of the pairs that differ, ascending."""
        return np.flatnonzero(~self.equal)

    @property
    def guessed(self) -> Array:
        """For each pair, whether its names were matched by a guess, which may be wrong."""
        names = {renaming.a for renaming in self.renamed if renaming.how == "guess"}
        by_guess: Array = self.a.where(lambda tensor: tensor.name in names)[self.a_row]
        return by_guess

    def settled(self) -> Alignment:
        """Return the alignment without guessed pairs; their records then belong to one run alone.

        Returns the alignment itself where no pair is guessed, or all pairs are.
        """
        guessed = self.guessed
        if not guessed.any() or guessed.all():
            return self
        sure = ~guessed
        return replace(
            self,
            a_row=self.a_row[sure],
            b_row=self.b_row[sure],
            equal=self.equal[sure],
            only_a=np.union1d(self.only_a, self.a_row[guessed]),
            only_b=np.union1d(self.only_b, self.b_row[guessed]),
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records of two runs were paired, and how many of these pairs are equal.

    matched: all pairs. only_a, only_b: records of one run alone.
    """

    matched: int
    identical: int
    differing: int
    only_a: int
    only_b: int
