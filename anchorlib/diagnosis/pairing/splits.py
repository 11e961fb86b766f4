"""How one run splits the work that the other does at once: into passes, or over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np

from anchorlib.diagnosis.pairing.table import Table

__all__ = ["Split", "meetings", "splits"]

STEPWISE = ("updated", "delta")  # kinds that a step has once, whatever its passes


@dataclass(frozen=True, slots=True)
class Split:
    """So many passes of one run, or ranks, or both, may be one of the other's.

    side: "a" or "b", whose they are. ranks: the finer run's ranks -> the other's.
    phases: of those whose passes are split; the others' are not.
    passes: how many are one.
    """

    side: str
    ranks: Mapping[int, int]
    phases: frozenset[str]
    passes: int

    @property
    def together(self) -> int:
        """How many ranks are one."""
        return len(self.ranks) // len(set(self.ranks.values()))

    @property
    def parts(self) -> int:
        """How many parts are one."""
        return self.together * self.passes

    @property
    def factors(self) -> list[float]:
        """What a sum over all parts may be taken times: a mean over ranks, passes, both or none."""
        ranks, passes = 1 / self.together, 1 / self.passes
        return sorted({1.0, ranks, passes, ranks * passes})

    def pass_of(self, phase: str, pass_index: int) -> int:
        """The other's pass that one of the finer run's belongs to."""
        return pass_index // self.passes if phase in self.phases else pass_index


def splits(a: Table, b: Table) -> list[Split]:
    """What the numbers of passes and ranks allow; whether it is so, the shapes tell."""
    found = []
    counts = [_passes(table) for table in (a, b)]
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
        phases = frozenset(phase for phase, one in times.items() if one == passes > 1)
        found.append(Split(side, joined, phases, max(passes, 1)))
    return found


def meetings(a: Table, b: Table) -> list[tuple[Split, Split]]:
    """To which splits both runs can be brought where neither's work is a part of the other's.

    First to as many ranks and passes as divide both runs', then to a single rank or pass.
    """
    passes = [_passes(table) for table in (a, b)]
    ranks = [sorted({tensor.rank for tensor in table.tensors}) for table in (a, b)]
    alike = len(ranks[0]) == len(ranks[1]) and all(
        count == passes[1].get(phase, count) for phase, count in passes[0].items()
    )
    if alike or not ranks[0] or not ranks[1]:
        return []
    found: list[tuple[Split, Split]] = []
    for left in (gcd(len(ranks[0]), len(ranks[1])), 1):
        for shares in (True, False):
            joined = [_joined(own, ranks[0][:left]) for own in ranks]
            times = [_brought(passes[n], passes[1 - n], shares=shares) for n in range(2)]
            both = zip("ab", joined, times, strict=True)
            one, two = (Split(side, own, *told) for side, own, told in both)
            if one.parts > 1 and two.parts > 1 and (one, two) not in found:
                found.append((one, two))
    return found


def _joined(ranks: list[int], names: list[int]) -> dict[int, int]:
    """Which of fewer ranks each is a part of."""
    together = len(ranks) // len(names)
    return {rank: names[n // together] for n, rank in enumerate(ranks)}


def _brought(
    own: Mapping[str, int], others: Mapping[str, int], *, shares: bool
) -> tuple[frozenset[str], int]:
    """The phases whose passes are taken together, and how many.

    shares: whether as many are left as divide both runs' passes, else a single one.
    """
    times = {
        phase: count // gcd(count, others[phase]) if shares else count
        for phase, count in own.items()
        if phase in others
    }
    most = max(times.values(), default=1)
    return frozenset(phase for phase, one in times.items() if one == most > 1), most


def _times(fine: int, coarse: int) -> int:
    """How many of the finer are one of the other; 0 where they do not divide."""
    return fine // coarse if coarse and fine >= coarse and fine % coarse == 0 else 0


def _passes(table: Table) -> dict[str, int]:
    """How many passes most steps of each phase have."""
    kinds = np.array([tensor.kind not in STEPWISE for tensor in table.tensors], bool)
    found = {}
    for number, phase in enumerate(table.phases):
        rows = np.flatnonzero((table.phase == number) & kinds[table.tensor])
        if not len(rows):
            continue
        steps, which = np.unique(table.step[rows], return_inverse=True)
        last = np.zeros(len(steps), np.int64)
        np.maximum.at(last, which.reshape(-1), table.pass_index[rows])
        found[phase] = int(np.median(last)) + 1
    return found
