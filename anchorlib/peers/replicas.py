"""Finds the tensors that ranks hold alike, and the ranks whose bits differ there, by digests.

Ranks with equal digests at a place (a step, pass and call of a series) are a class. A series is
replicated where classes typically have several ranks (all ranks of a data-parallel job; the
replicas of a shard in a hybrid job), and where the elements of a record differ among themselves:
the zeros of a first step are equal on every shard, and do not show that ranks hold the tensor
alike. A rank is away at a place where its class has at most half the typical number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anchorlib.peers.grid import Array, RankGrid
from anchorlib.peers.outlier import Departure

__all__ = ["DigestClasses", "classes", "departures", "with_constants_classified"]

MOST_RETURNING = 4  # if more than one rank in four leaves and comes back, the cause is the data
CHANGES = 3  # common changes after which a tensor that is one number counts as replicated
MANY = 8  # with at least so many ranks a single common change is enough


@dataclass(frozen=True, slots=True)
class DigestClasses:
    """How many ranks share a rank's digest, at each place (step, pass and call) of a series.

    kind: the kind of the series.
    first: the first column of the series in the grid.
    digest: (ranks, places): the digest of each rank's record; 0 where a rank has no record.
    sizes: (ranks, places): how many ranks have the same digest, the rank itself included; 0 where
    the rank has no record.
    typical: how many ranks typically share a digest of a replicated tensor; 0 or 1 for a tensor
    that is not replicated.
    plain: whether the records do not show if the tensor is replicated: the elements of each record
    are one number, which too seldom changes on most ranks at once.
    """

    kind: str
    first: int
    digest: Array
    sizes: Array
    typical: int
    plain: bool


def classes(grid: RankGrid) -> list[DigestClasses]:
    """Return, for each series of the grid, how many ranks share each rank's digests."""
    return [_classes(grid, key.kind, places) for key, places in grid.each()]


def _classes(grid: RankGrid, kind: str, places: slice) -> DigestClasses:
    digest, present = grid.digest[:, places], grid.row[:, places] >= 0
    sizes = _sizes(digest, present)
    usual = _usual(sizes)
    varied = (grid.varied[:, places] & (sizes == usual)).any(axis=0)
    plain, judged = not varied.any(), varied & (usual > 1)
    if plain and _changes(sizes, digest) >= (CHANGES if len(sizes) < MANY else 1):
        return DigestClasses(kind, places.start, digest, sizes, int(usual.max()), plain=False)
    typical = int(usual[judged].max()) if judged.any() else 0
    return DigestClasses(kind, places.start, digest, sizes, typical, plain)


def with_constants_classified(every: list[DigestClasses]) -> list[DigestClasses]:
    """Return the classes, with plain series counted as replicated if others of their kind are.

    Each record of a plain series has one number in all its elements: a bias of zeros, for example,
    or a scale that never moves. Such a series counts as replicated if nine in ten other series of
    its kind are, and if ranks share a digest at the first record that several ranks have. So a loss
    does not count: ranks differ in their losses from the first record on.

    every: the classes of all series of a grid.
    """
    kinds: dict[str, list[int]] = {}
    for one in every:
        if not one.plain:
            kinds.setdefault(one.kind, []).append(one.typical)
    sure = {
        kind: int(np.median(sizes))
        for kind, sizes in kinds.items()
        if np.mean(np.array(sizes) > 1) >= 0.9
    }
    return [
        one
        if not one.plain or one.kind not in sure or one.typical or not _agree_at_first(one.sizes)
        else DigestClasses(one.kind, one.first, one.digest, one.sizes, sure[one.kind], plain=False)
        for one in every
    ]


def departures(one: DigestClasses) -> Iterator[Departure]:
    """Yield a Departure for each rank whose digests differ from those of its peers in a series.

    Nothing is yielded for a series that ranks do not hold alike. Where so many ranks leave and
    rejoin their peers that the data must be the cause, single ranks are not yielded; but where all
    ranks part and stay apart to the end of the series, each is.
    """
    if one.typical < 2:
        return
    present = one.sizes > 0
    away = present & (2 * one.sizes <= np.minimum(one.typical, present.sum(axis=0)))
    if not away.any():
        return
    nowhere = away.any(axis=0) & ~(present & ~away).any(axis=0)
    if nowhere.any():
        away, parted = _without_rhythm(away, nowhere, present)
        if parted is not None:
            yield from _parting(one, parted, away, present)
    if not _is_data(away, present):
        for rank in np.flatnonzero(away.any(axis=1)).tolist():
            yield from _departure(one, rank, away, present)


def _departure(one: DigestClasses, rank: int, away: Array, present: Array) -> Iterator[Departure]:
    """Yield a Departure for a rank whose digest few ranks share at some places of a series.

    A place is a step, pass and call. Nothing is yielded if the rank only went on recording after
    its peers had ended. The evidence is "parting" where the ranks that last agreed with the rank
    have all left the majority, too; else "digest".

    away: (ranks, places): whether few ranks share the rank's digest.
    present: (ranks, places): whether the rank has a record.
    """
    places = np.flatnonzero(away[rank])
    at = int(places[0])
    mates = _mates(one, rank, at, away)
    if mates.any() and not (mates & present[:, at]).any():
        return
    home = mates & present[:, at] & ~away[:, at]
    lost = bool(mates.any()) and not home.any()
    if not mates.any():
        home = present[:, at] & ~away[:, at]
    peers = () if lost else tuple(np.flatnonzero(home).tolist())
    yield Departure("parting" if lost else "digest", rank, one.first + at, len(places), peers)


def _mates(one: DigestClasses, rank: int, at: int, away: Array) -> Array:
    """Return a mask of the ranks that had the digest of `rank` when it last agreed with others.

    Only places (step, pass and call) before `at` count, and only those where enough ranks had the
    digest of `rank`. `rank` itself is False in the mask; all are False if `rank` never agreed with
    others.

    away: (ranks, places): whether too few ranks share the rank's digest.
    """
    before = np.flatnonzero((one.sizes[rank, :at] > 1) & ~away[rank, :at])
    if not len(before):
        return np.zeros(len(one.digest), bool)
    last = before[-1]
    mates: Array = (one.digest[:, last] == one.digest[rank, last]) & (one.sizes[:, last] > 0)
    mates[rank] = False
    return mates


def _parting(one: DigestClasses, at: int, away: Array, present: Array) -> Iterator[Departure]:
    """Yield a Departure for each rank that agreed with its peers until place `at` of a series.

    A place is a step, pass and call. From the place `at` on, no digest has a majority of ranks.

    away: (ranks, places): whether few ranks share the rank's digest.
    present: (ranks, places): whether the rank has a record.
    """
    left = away[:, :at].any(axis=1)
    for rank in np.flatnonzero(present[:, at] & ~left).tolist():
        records = int(present[rank, at:].sum())
        yield Departure("parting", rank, one.first + at, records, ())


def _without_rhythm(away: Array, nowhere: Array, present: Array) -> tuple[Array, int | None]:
    """Return `away` with False at places without a majority, and the place where all ranks part.

    A place is a step, pass and call. All ranks part at the first place where no digest has a
    majority, unless a majority comes back later; then the second result is None: ranks that all
    part and meet again (local steps between two averages) do nothing wrong. It is also None where
    no place has a majority.

    away: (ranks, places): whether few ranks share the rank's digest.
    nowhere: a mask of the places without a majority.
    present: (ranks, places): whether the rank has a record.
    """
    recorded = present.any(axis=0)
    home = np.flatnonzero(recorded & ~nowhere)
    first = int(np.flatnonzero(nowhere)[0])
    ends = len(home) > 0 and first > home[-1]
    return away & ~nowhere, first if ends else None


def _is_data(away: Array, present: Array) -> bool:
    """Return whether ranks leave and rejoin their peers so often that the data is the cause.

    Padding, for instance, has this effect. True if more than one rank in four (and more than one)
    is away at some record, and any of these ranks shares a digest with its peers again later.

    away: (ranks, records): whether few ranks share the rank's digest.
    present: (ranks, records): whether the rank has a record.
    """
    left = away.any(axis=1)
    if int(left.sum()) <= max(len(away) // MOST_RETURNING, 1):
        return False
    first = np.argmax(away, axis=1)
    later = np.arange(away.shape[1]) > first[:, None]
    back = (present & ~away & later).any(axis=1)
    return bool((left & back).any())


def _sizes(digest: Array, present: Array) -> Array:
    """Return how many ranks have each rank's digest, as (ranks, records); 0 without a record.

    digest: (ranks, records): the digest of the rank's record.
    present: (ranks, records): whether the rank has a record.
    """
    ranks = len(digest)
    sizes = np.full(digest.shape, ranks, np.int64)
    other = np.flatnonzero((digest != digest[:1]).any(axis=0) | ~present.all(axis=0))
    if len(other):
        some = digest[:, other]
        order = np.argsort(some, axis=0, kind="stable")
        ascending = np.take_along_axis(some, order, axis=0)
        group = np.zeros(some.shape, np.int64)
        group[1:] = np.cumsum(ascending[1:] != ascending[:-1], axis=0)
        group += ranks * np.arange(len(other))
        counts = np.bincount(group.ravel(), minlength=ranks * len(other))
        counts_of_group = np.empty_like(group)
        np.put_along_axis(counts_of_group, order, counts[group], axis=0)
        sizes[:, other] = counts_of_group
    return np.where(present, sizes, 0)


def _changes(sizes: Array, digest: Array) -> int:
    """Return how often the digest that at least three ranks in four share changes.

    A change counts where there is such a digest in each of two neighbouring columns, and the two
    digests differ.

    sizes, digest: (ranks, records), as in `DigestClasses`.
    """
    most = 4 * sizes.max(axis=0) >= 3 * len(sizes)
    shared = np.take_along_axis(digest, np.argmax(sizes, axis=0)[None], axis=0)[0]
    return int(np.count_nonzero((shared[1:] != shared[:-1]) & most[1:] & most[:-1]))


def _agree_at_first(sizes: Array) -> bool:
    """Return whether ranks typically share a digest at the first record that several of them have.

    sizes: (ranks, records): how many ranks share the rank's digest; 0 without a record.
    """
    held = np.flatnonzero((sizes > 0).sum(axis=0) > 1)
    return bool(len(held)) and int(_usual(sizes[:, held[:1]])[0]) > 1


def _usual(sizes: Array) -> Array:
    """Return, for each column, the median over the ranks of how many ranks share a rank's digest.

    Ranks without a record do not count; the median is 0 where no rank has one. It is always a
    number that occurs, not the mean of two.

    sizes: (ranks, records): how many ranks share the rank's digest; 0 without a record.
    """
    ascending = np.sort(sizes, axis=0)
    absent = (ascending == 0).sum(axis=0)
    middle = np.minimum((absent + len(sizes) - 1) // 2, len(sizes) - 1)
    usual: Array = np.take_along_axis(ascending, middle[None], axis=0)[0]
    return usual
