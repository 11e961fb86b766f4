"""The function `outliers`, by which users ask which ranks of a run differ from the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from anchorlib.peers.grid import RankGrid, grid_of
from anchorlib.peers.nonfinite import departures_of_nan
from anchorlib.peers.norms import departures_of_norms
from anchorlib.peers.outlier import Departure, Outlier, RankAnswer, folded
from anchorlib.peers.presence import ended_early, missing_ranks
from anchorlib.peers.replicas import classes, departures, with_constants_classified
from anchorlib.reading import Run, open_run

__all__ = ["outliers"]


def outliers(
    run: str | Path | Run,
    *,
    store: str | Path | None = None,
    tensors: str | Sequence[str] = "*",
) -> RankAnswer:
    """Find the ranks of a run that differ from the others, and the first record that shows it.

    run: a name in `store`, a path, a URL, or a Run.
    store: a directory, or the URL of a collector or object store; None means ANCHOR_STORE, else
    "anchors".
    tensors: selectors; only the tensors that they match are looked at.

    Where ranks hold a tensor alike (a parameter of a data-parallel job), digests are compared: one
    flipped bit is an outlier. Where a tensor differs between ranks (a loss, local gradients), a
    rank is an outlier if it has NaN where its peers have none, or if its norm is far from theirs.
    Columns are read, values are not: about 50 bytes of memory a record.

    Raises RunNotFoundError where there is no such run, UnknownTensorError for a selector that
    matches no tensor, OptionError for an invalid `store`, DamagedError for damaged columns, and
    CollectorError where a collector does not answer.
    """
    opened = run if isinstance(run, Run) else open_run(run, store)
    asked = () if tensors == "*" else (tensors,) if isinstance(tensors, str) else tuple(tensors)
    named = {(info.name, info.kind) for info in opened.tensors(*asked)} if asked else None
    grid = grid_of(opened, named)
    digest_classes = with_constants_classified(classes(grid))
    alike = [one.typical > 1 for one in digest_classes]
    left = [one for series in digest_classes for one in departures(series)]
    left += departures_of_nan(grid)
    left += departures_of_norms(grid, alike)
    return RankAnswer(
        run=opened.name,
        ranks=tuple(grid.ranks),
        series=len(digest_classes),
        replicated=sum(alike),
        outliers=_ordered(grid, left),
        missing=missing_ranks(opened, grid.ranks),
        ended_early=ended_early(grid),
    )


def _ordered(grid: RankGrid, left: Iterable[Departure]) -> tuple[Outlier, ...]:
    """Return the outliers that departures make, in order of execution.

    All departures of a rank by one kind of evidence become one outlier. Ranks that differ from the
    same peers at the same record, by the same evidence, become one outlier as well.

    left: the departures of all ranks in all series.
    """
    groups: dict[tuple[int, str], list[Departure]] = {}
    for one in left:
        groups.setdefault((one.rank, one.evidence), []).append(one)
    outliers_by_order = [_first(grid, ones) for ones in groups.values()]
    outliers_by_order.sort(key=lambda item: item[0])
    return folded([one for _, one in outliers_by_order])


def _first(grid: RankGrid, ones: list[Departure]) -> tuple[tuple[int, int, int], Outlier]:
    step = min(int(grid.step[one.place]) for one in ones)
    earliest = [one for one in ones if grid.step[one.place] == step]
    order, first = min(
        ((grid.order(one.rank, one.place), one) for one in earliest), key=lambda pair: pair[0]
    )
    key, at = grid.series[int(grid.owner[first.place])], first.place
    tensors = {grid.series[int(grid.owner[one.place])][:2] for one in ones}
    outlier = Outlier(
        ranks=(grid.ranks[first.rank],),
        evidence=first.evidence,
        step=step,
        pass_index=int(grid.pass_index[at]),
        call=int(grid.call[at]),
        phase=key.phase,
        name=key.name,
        kind=key.kind,
        records=sum(one.records for one in ones),
        tensors=len(tensors),
        peers=tuple(grid.ranks[rank] for rank in first.peers),
        ratio=first.ratio,
    )
    return (step, order, first.rank), outlier
