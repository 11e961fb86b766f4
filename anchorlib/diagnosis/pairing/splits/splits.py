"""Splits of work: several passes or ranks of one run do what one pass or rank of the other does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["Split", "all_passes", "meetings", "splits"]

STEPWISE = ("updated", "delta")  # kinds that a step has once, whatever its passes


@dataclass(frozen=True, slots=True)
class Split:
    """How passes, ranks, or both, of the finer run (which has more) make up those of the other run.

    side: the finer run, "a" or "b". ranks: each rank of the finer run -> the other run's rank to
    which it belongs.
    phases: the phases whose passes are split.
    passes: how many of the finer run's passes make up one pass of the other run in these phases.
    """

    side: str
    ranks: Mapping[int, int]
    phases: frozenset[str]
    passes: int

    @property
    def together(self) -> int:
        """How many ranks of the finer run make up one rank of the other run.

        It is 1 if only passes are split.
        """
        return len(self.ranks) // len(set(self.ranks.values()))

    @property
    def parts(self) -> int:
        """How many parts, ranks times passes, make up one record of the other run."""
        return self.together * self.passes

    @property
    def factors(self) -> list[float]:
        """The numbers by which a sum over parts may have to be multiplied, ascending.

        They turn the sum into a mean over ranks, over passes, over both, or leave it a sum (1.0).
        """
        ranks, passes = 1 / self.together, 1 / self.passes
        return sorted({1.0, ranks, passes, ranks * passes})

    def pass_of(self, phase: str, pass_index: int) -> int:
        """Return the other run's pass to which a pass of the finer run belongs."""
        return pass_index // self.passes if phase in self.phases else pass_index


def splits(a: Table, b: Table, without: Collection[str] = ()) -> list[Split]:
    """Return the splits that the numbers of passes and ranks of both runs allow; [] for none.

    One run must have a whole multiple of the other's ranks or passes. Shapes then decide which
    split holds. without: phases whose passes are not counted.
    """
    allowed = []
    counts = [_passes(table, without) for table in (a, b)]
    ranks = [sorted({tensor.rank for tensor in table.tensors}) for table in (a, b)]
    for fine, coarse, side in ((1, 0, "b"), (0, 1, "a")):
        together = _times(len(ranks[fine]), len(ranks[coarse]))
        times = {
            phase: _times(count, counts[coarse][phase])
            for phase, count in counts[fine].items()
            if phase in counts[coarse]
        }
        passes = max(times.values(), default=0)
        if not together or together * max(passes, 1) == 1:
            continue
        joined = {rank: ranks[coarse][n // together] for n, rank in enumerate(ranks[fine])}
        phases = frozenset(phase for phase, ratio in times.items() if ratio == passes > 1)
        allowed.append(Split(side, joined, phases, max(passes, 1)))
    return allowed


def meetings(a: Table, b: Table, without: Collection[str] = ()) -> list[tuple[Split, Split]]:
    """Return pairs of splits (A's, B's) that bring two runs to common ranks and passes, or [].

    The pairs are for two runs each of which does part of its work in more parts than the other. The
    first pairs leave as many ranks and passes as the greatest common divisors of both runs'
    numbers; later pairs merge all ranks, or all passes, into one.
    without: phases whose passes are not counted.
    """
    passes = [_passes(table, without) for table in (a, b)]
    ranks = [sorted({tensor.rank for tensor in table.tensors}) for table in (a, b)]
    alike = len(ranks[0]) == len(ranks[1]) and all(
        count == passes[1].get(phase, count) for phase, count in passes[0].items()
    )
    if alike or not ranks[0] or not ranks[1]:
        return []
    pairs: list[tuple[Split, Split]] = []
    for left in (gcd(len(ranks[0]), len(ranks[1])), 1):
        for shares in (True, False):
            joined = [_joined(own, ranks[0][:left]) for own in ranks]
            times = [_brought(passes[n], passes[1 - n], shares=shares) for n in range(2)]
            both = zip("ab", joined, times, strict=True)
            split_a, split_b = (
                Split(side, own, *phases_and_passes) for side, own, phases_and_passes in both
            )
            if split_a.parts > 1 and split_b.parts > 1 and (split_a, split_b) not in pairs:
                pairs.append((split_a, split_b))
    return pairs


def all_passes(a: Table, b: Table, phase: str) -> tuple[Split, Split] | None:
    """Return the splits of A and of B that make one pass of all passes that a step has in a phase.

    They also merge the passes of other phases that have as many. None unless both runs have the
    same ranks, and equally many passes in each phase: more than one in `phase`.
    """
    passes = [_passes(table) for table in (a, b)]
    ranks = [sorted({tensor.rank for tensor in table.tensors}) for table in (a, b)]
    count = passes[0].get(phase, 1)
    if passes[0] != passes[1] or ranks[0] != ranks[1] or count == 1:
        return None
    phases = frozenset(one for one, other in passes[0].items() if other == count)
    split = Split("a", {rank: rank for rank in ranks[0]}, phases, count)
    return split, replace(split, side="b")


def _joined(ranks: list[int], names: list[int]) -> dict[int, int]:
    """Return, for each of `ranks`, the rank into which it is merged.

    names: the ranks that are left, in order. Equally many neighbouring ranks are merged into each
    of these.
    """
    together = len(ranks) // len(names)
    return {rank: names[n // together] for n, rank in enumerate(ranks)}


def _brought(
    own: Mapping[str, int], others: Mapping[str, int], *, shares: bool
) -> tuple[frozenset[str], int]:
    """Return the phases of one run whose passes are merged, and how many passes become one.

    Of phases in which different numbers of passes would become one, only those with the largest
    number are returned.
    own, others: how many passes a step has in each phase, in this run and in the other.
    shares: True: a phase keeps as many passes as the greatest common divisor of both runs' numbers;
    False: it keeps one pass.
    """
    times = {
        phase: count // gcd(count, others[phase]) if shares else count
        for phase, count in own.items()
        if phase in others
    }
    most = max(times.values(), default=1)
    return frozenset(phase for phase, ratio in times.items() if ratio == most > 1), most


def _times(fine: int, coarse: int) -> int:
    """Return how many times `coarse` goes into `fine`; 0 where `fine` is no multiple of it."""
    return fine // coarse if coarse and fine >= coarse and fine % coarse == 0 else 0


def _passes(table: Table, without: Collection[str] = ()) -> dict[str, int]:
    """Return for each phase how many passes its steps usually have (the median).

    without: phases that are left out.
    """
    of_passes = ~table.of_kind(*STEPWISE)
    counts = {}
    for number, phase in enumerate(table.phases):
        if phase in without:
            continue
        rows = np.flatnonzero((table.phase == number) & of_passes)
        if not len(rows):
            continue
        steps, which = np.unique(table.step[rows], return_inverse=True)
        last = np.zeros(len(steps), np.int64)
        np.maximum.at(last, which.reshape(-1), table.pass_index[rows])
        counts[phase] = int(np.median(last)) + 1
    return counts
