"""What the digests of two archived runs tell of them before any rank is opened.

The digests are one object of each run, however many ranks it has. They tell which ranks are equal
bit for bit, and of each other rank the first steps in which its records are not the same. With that
a comparison opens the ranks that differ, and of the equal ones those that stand for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anchorlib.diagnosis.pairing import Standing
from anchorlib.diagnosis.rank_spans import Ranks, ranks_line
from anchorlib.peers import ranks_text
from anchorlib.reading import Run
from anchorlib.store import RankDigests

__all__ = ["Beforehand", "beforehand", "first_parting"]


@dataclass(frozen=True, slots=True)
class Beforehand:
    """What is known of the ranks that have digests in both runs.

    equal: ranks whose records are the same in both, ascending. parting: for each other rank the
        first steps, of which one has records that are not the same.
    standing: equal ranks that need not be read -> the rank that stands for each.
    is_traced: whether both runs may have traced operations, which the digests do not cover.
    """

    equal: tuple[int, ...]
    parting: Mapping[int, range]
    standing: Standing
    is_traced: bool

    def line(self) -> str:
        """The answer in words: "ranks 0-7, 2 differ (3, 4); first at step 5 (rank 3)"."""
        every = tuple(sorted((*self.equal, *self.parting)))
        told = ranks_line(Ranks(every, tuple(sorted(self.parting))))
        if not self.parting:
            return told
        first = min(self.parting.values(), key=lambda one: (one.start, one.stop))
        there = [rank for rank, steps in sorted(self.parting.items()) if steps == first]
        where = f"step {first.start}"
        if len(first) > 1:
            where = f"one of the steps {first.start}-{first.stop - 1}"
        return f"{told}; first at {where} ({ranks_text(there)})"


def beforehand(a: Run, b: Run) -> Beforehand | None:
    """What the digests of two runs tell; None where fewer than two ranks have any in both."""
    one, two = a.digests(), b.digests()
    common = sorted({*one} & {*two})
    if len(common) < 2:
        return None
    parting: dict[int, range] = {}
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for rank in common:
        steps = first_parting(one[rank], two[rank])
        if steps is None:
            alike.setdefault((one[rank].outline, two[rank].outline), []).append(rank)
        else:
            parting[rank] = steps
    return Beforehand(
        equal=tuple(rank for rank in common if rank not in parting),
        parting=parting,
        standing={rank: first for first, *rest in alike.values() for rank in rest},
        is_traced=all(
            any(rank not in told or told[rank].is_traced for rank in run.ranks)
            for run, told in ((a, one), (b, two))
        ),
    )


def first_parting(one: RankDigests, two: RankDigests) -> range | None:
    """The first steps of which not all records are the same; None where all are."""
    width = max(one.width, two.width)
    a, b = one.of_width(width).stretches, two.of_width(width).stretches
    other = [number for number in {*a, *b} if a.get(number) != b.get(number)]
    return range(min(other) * width, (min(other) + 1) * width) if other else None
