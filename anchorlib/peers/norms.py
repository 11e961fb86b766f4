"""Finds ranks whose norms lie far from those of the others, in tensors that differ between ranks.

Local gradients, losses and activations differ on every rank, for the data does. A norm is measured
as the base-2 logarithm of the root mean square, less the median of the ranks at the same place. The
unit of each test is the median absolute deviation (times 1.4826, which makes it the standard
deviation of a normal distribution: Rousseeuw and Croux 1993). Two tests:

jump    one record is compared with the rank's own five records before it, so that a shard that is
        always larger than others is no jump. The median change of the rank's series of the kind in
        that step is subtracted first, since a strange batch moves them all. A jump is more than
        `JUMP` units, than `JUMP_AT_LEAST` powers of two, and than twice the largest change in the
        series on nine ranks in ten.
level   all records of a rank are compared with its peers'. A rank is reported where the norms of
        half of its series of a kind, and of three at least, are far off, all upwards or all
        downwards: for example on a rank that counts its gradients twice from its first step on. One
        large shard is not enough.

A change of all series of a rank in a single step is attributed to its data, not to a fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anchorlib.peers.grid import Array, RankGrid
from anchorlib.peers.outlier import Departure

__all__ = ["departures_of_norms"]

FEWEST_RANKS = 4
BEFORE = 5  # records before the judged one, whose median is the rank's own level
JUMP = 9.0
JUMP_AT_LEAST = 2.0
BEYOND_OTHERS = 2.0
LEVEL = 8.0
LEVEL_AT_LEAST = 0.5
LEVEL_SERIES = 3
TOGETHER = 3  # so many series of a kind are needed to tell what the batch changed in all
FLOOR = 0.02  # powers of two by which a norm may change where a sum rounds in another order
SIGMA = 1.4826


def departures_of_norms(grid: RankGrid, replicated: list[bool]) -> Iterator[Departure]:
    """Yield a Departure for each rank whose norms lie far from those of its peers.

    For a jump there is a Departure for each series, for a level one for all series of a kind.
    Nothing is yielded for a run of fewer than four ranks.

    replicated: for each series of the grid, whether ranks hold the tensor alike. Such a series is
    skipped here, since its digests are compared (`anchorlib.peers.replicas`).
    """
    if len(grid.ranks) < FEWEST_RANKS:
        return
    kinds: dict[str, list[_Sizes]] = {}
    for (key, places), alike in zip(grid.each(), replicated, strict=True):
        if not alike:
            apart = _apart(grid.rms[:, places])
            own = _Sizes(places.start, grid.step[places], apart, _change(apart))
            kinds.setdefault(key.kind, []).append(own)
    for of_kind in kinds.values():
        together = _together(of_kind)
        for one in of_kind:
            yield from _jumps(one, together)
        yield from _levels([(one.start, *_level(one.apart)) for one in of_kind], grid)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How far the norms of one series are from those of other ranks and of earlier records.

    start: the first column of the series in the grid.
    steps: the step of each column of the series.
    apart: (ranks, columns): by how many powers of two each rank's norm exceeds the median of all
    ranks; NaN where this is unknown.
    change: (ranks, columns): `apart` less its median over the rank's five records before; NaN where
    this is unknown.
    """

    start: int
    steps: Array
    apart: Array
    change: Array


def _apart(rms: Array) -> Array:
    """Return by how many powers of two each rank's norm exceeds the median of all ranks.

    The result is (ranks, records of the series), like `rms`: NaN where a rank has no norm, and at
    records where fewer than four ranks have a norm.

    rms: the norms of one series; NaN where a rank has none.
    """
    with np.errstate(all="ignore"):
        size = np.log2(rms)
    size[:, np.isfinite(size).sum(axis=0) < FEWEST_RANKS] = np.nan
    apart: Array = size - _median(size, axis=0)
    return apart


def _change(apart: Array) -> Array:
    """Return how far each entry exceeds the median of its rank's five entries before it.

    The result is (ranks, records of the series), in powers of two, like `apart`. An entry is NaN
    where it is not known itself, or fewer than three of the five before it are known.

    apart: as `_apart` returns it.
    """
    count = apart.shape[1]
    ahead = np.full((len(apart), BEFORE), np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(np.hstack([ahead, apart]), BEFORE, axis=1)
    own = windows[:, :count]
    base = np.where(np.isfinite(own).sum(axis=2) > BEFORE // 2, _median(own, axis=2), np.nan)
    return apart - base


def _together(sizes: list[_Sizes]) -> dict[int, Array]:
    """Return, by step, the median change of each rank over its series of one kind.

    For each step there is an array with one number for each rank, in powers of two; 0 where no
    change of the rank is known. The result is {} for fewer than three series. A step with fewer
    than three places (of all series together) has no entry.

    sizes: one entry for each series of the kind.
    """
    if len(sizes) < TOGETHER:
        return {}
    steps = np.concatenate([one.steps for one in sizes])
    changes = np.concatenate([one.change for one in sizes], axis=1)
    order = np.argsort(steps, kind="stable")
    known, first = np.unique(steps[order], return_index=True)
    parts = np.split(order, first[1:])
    return {
        step: np.nan_to_num(_median(changes[:, part], axis=1))
        for step, part in zip(known.tolist(), parts, strict=True)
        if len(part) >= TOGETHER
    }


def _jumps(one: _Sizes, together: dict[int, Array]) -> Iterator[Departure]:
    if not np.isfinite(one.change).any():
        return
    none = np.zeros(len(one.change))
    shared = np.stack([together.get(step, none) for step in one.steps.tolist()], axis=1)
    change = np.abs(one.change - shared)
    most = np.nanmax(np.nan_to_num(change), axis=1)
    unit = max(SIGMA * float(_median(change)), FLOOR)
    usual = float(np.quantile(most, 0.9, method="lower"))
    limit = max(JUMP * unit, JUMP_AT_LEAST, BEYOND_OTHERS * usual)
    for rank in np.flatnonzero(most > limit).tolist():
        yield _departure(rank, one.start, np.flatnonzero(change[rank] > limit), one.apart)


def _departure(rank: int, start: int, at: Array, apart: Array) -> Departure:
    first = int(at[0])
    peers = np.isfinite(apart[:, first])
    peers[rank] = False
    ratio = float(np.exp2(apart[rank, first]))
    here = tuple(np.flatnonzero(peers).tolist())
    return Departure("norm", rank, start + first, len(at), here, ratio)


def _level(apart: Array) -> tuple[Array, Array]:
    """Return each rank's level, its median over a series: in powers of two, and in units.

    Both arrays have one number for each rank. The unit is 1.4826 times the median of the levels'
    absolute values, and FLOOR at least.

    apart: (ranks, records of the series), as `_apart` returns it.
    """
    level = _median(apart, axis=1)
    unit = max(SIGMA * float(_median(np.abs(level))) if np.isfinite(level).any() else 0.0, FLOOR)
    return level, level / unit


def _levels(series: list[tuple[int, Array, Array]], grid: RankGrid) -> Iterator[Departure]:
    if len(series) < LEVEL_SERIES:
        return
    levels, units = (np.array([one[part] for one in series]) for part in (1, 2))
    with np.errstate(invalid="ignore"):
        for sign in (1, -1):
            out = (sign * units > LEVEL) & (sign * levels > LEVEL_AT_LEAST)
            measured = np.isfinite(levels).sum(axis=0)
            faulty = (out.sum(axis=0) >= LEVEL_SERIES) & (2 * out.sum(axis=0) >= measured)
            for rank in np.flatnonzero(faulty).tolist():
                yield _lasting(series, out[:, rank], rank, grid)


def _lasting(
    series: list[tuple[int, Array, Array]], out: Array, rank: int, grid: RankGrid
) -> Departure:
    """Return the Departure of a rank whose norms lie far from its peers' throughout some series.

    The departure begins at the rank's first record in these series.

    series: for each series of a kind its first column in the grid, and two arrays with each rank's
    level: in powers of two, and in units of the spread.
    out: a mask of `series`: those in which the rank is far off.
    rank: the rank's index in the grid.
    """
    starts = {series[number][0]: number for number in np.flatnonzero(out).tolist()}
    first = {_first(grid, rank, start): number for start, number in starts.items()}
    place = min(first, key=lambda at: (int(grid.step[at]), grid.order(rank, at)))
    level = series[first[place]][1]
    peers = np.isfinite(level)
    peers[rank] = False
    owners = {int(grid.owner[at]) for at in first}
    records = int(np.isin(grid.owner[grid.row[rank] >= 0], list(owners)).sum())
    here = tuple(np.flatnonzero(peers).tolist())
    return Departure("norm", rank, place, records, here, float(np.exp2(level[rank])))


def _first(grid: RankGrid, rank: int, start: int) -> int:
    """Return the place (column of the grid) of a rank's first record from place `start` on."""
    return start + int(np.argmax(grid.row[rank, start:] >= 0))


def _median(values: Array, axis: int | None = None) -> Array:
    """Return the median of the values that are not NaN; NaN where all are NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy says that a slice is all NaN
        median: Array = np.nanmedian(values, axis=axis)
    return median
