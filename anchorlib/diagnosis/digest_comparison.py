"""What the digests of two archived runs show before any rank is opened.

The digests of a run are one object, however many ranks the run has. They show which ranks are equal
bit for bit, and for each other rank the first steps in which its records differ. So a comparison
opens only the ranks that differ, and one of each group of equal ranks, which stands for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anchorlib.diagnosis.pairing import Representatives
from anchorlib.diagnosis.rank_spans import Ranks, ranks_line
from anchorlib.peers import ranks_text
from anchorlib.reading import Run
from anchorlib.store import RankDigests

__all__ = ["DigestComparison", "compare_digests", "first_parting"]


@dataclass(frozen=True, slots=True)
class DigestComparison:
    """What digests show of the ranks that have digests in both runs.

    equal: ranks whose records are equal in both runs, ascending.
    parting: each other rank -> the first steps among which some record differs.
    standing: equal ranks that need not be read -> the rank that is read in place of each.
    is_traced: whether both runs may have traced operations, which the digests do not cover.
    """

    equal: tuple[int, ...]
    parting: Mapping[int, range]
    standing: Representatives
    is_traced: bool

    def line(self) -> str:
        """Return which ranks differ: "ranks 0-7, 2 differ (3, 4); first at step 5 (rank 3)"."""
        every = tuple(sorted((*self.equal, *self.parting)))
        line = ranks_line(Ranks(every, tuple(sorted(self.parting))))
        if not self.parting:
            return line
        first = min(self.parting.values(), key=lambda stretch: (stretch.start, stretch.stop))
        there = [rank for rank, steps in sorted(self.parting.items()) if steps == first]
        where = f"step {first.start}"
        if len(first) > 1:
            where = f"one of the steps {first.start}-{first.stop - 1}"
        return f"{line}; first at {where} ({ranks_text(there)})"


def compare_digests(a: Run, b: Run) -> DigestComparison | None:
    """Return what the digests show; None if fewer than two ranks have digests in both runs."""
    digests_a, digests_b = a.digests(), b.digests()
    common = sorted({*digests_a} & {*digests_b})
    if len(common) < 2:
        return None
    parting: dict[int, range] = {}
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for rank in common:
        steps = first_parting(digests_a[rank], digests_b[rank])
        if steps is None:
            alike.setdefault((digests_a[rank].outline, digests_b[rank].outline), []).append(rank)
        else:
            parting[rank] = steps
    return DigestComparison(
        equal=tuple(rank for rank in common if rank not in parting),
        parting=parting,
        standing={rank: first for first, *rest in alike.values() for rank in rest},
        is_traced=all(
            any(rank not in digests or digests[rank].is_traced for rank in run.ranks)
            for run, digests in ((a, digests_a), (b, digests_b))
        ),
    )


def first_parting(digests_a: RankDigests, digests_b: RankDigests) -> range | None:
    """Return the first range of steps in which a record differs; None where all records are equal.

    digests_a, digests_b: the digests of one rank in each run. Digests cover ranges of steps of
    equal width, so that the step is known only up to that width.
    """
    width = max(digests_a.width, digests_b.width)
    a, b = digests_a.of_width(width).stretches, digests_b.of_width(width).stretches
    other = [number for number in {*a, *b} if a.get(number) != b.get(number)]
    return range(min(other) * width, (min(other) + 1) * width) if other else None
