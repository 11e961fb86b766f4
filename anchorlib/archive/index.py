"""The index of an archived run, which several archivers may rewrite at once, each on condition."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anchorlib.errors import DamagedError, StoreError
from anchorlib.names import escape
from anchorlib.store import Location, listed_parts
from anchorlib.store.format import INDEX, digests_key
from anchorlib.store.objects import Shelf
from anchorlib.store.read import (
    RunFigures,
    digests_bytes,
    digests_of_run,
    index_bytes,
    object_name,
    parsed_index,
    sealed_figures,
)
from anchorlib.store.seal import RankDigests, RankFigures, read_index

__all__ = ["put_index"]

_TRIES = 30
_PAUSE = 0.05  # seconds, times the number of failed tries: others rewrite the index too


def put_index(folder: Shelf, ranks: Iterable[int], anew: Iterable[int] = ()) -> None:
    """Adds archived ranks to the index of their run, which is made where there is none.

    The digests of their steps are put first: the index names the object that has them. Those that
    no index names then, of the index before and of tries that came too late, are removed.

    folder: the run's objects. anew: ranks that were marked as whole just now. An index that has
        them already has figures of an earlier recording, so it is made again from all ranks.

    Raises StoreError, CollectorError.
    """
    marked, names = {*anew}, set[str]()
    for number in range(_TRIES):
        found = folder.fetch(INDEX)
        known = None if found is None else _parsed(found[0])
        names.add("" if known is None else known.digests)
        if known is not None and marked & {*known.ranks}:
            known = None
        merged, fresh = _with(folder.location, known, list(ranks))
        named = _put_digests(folder, known, merged, fresh)
        names.add(named)
        try:
            data = index_bytes(replace(merged, digests=named))
        except ValueError:  # too large for readers, which then read the ranks themselves
            folder.remove(INDEX)
            _remove_digests(folder, names)
            return
        if found is None:
            done = folder.create(INDEX, data)
        else:
            done = found[0] == data or folder.swap(INDEX, data, found[1])
        if done:
            _remove_digests(folder, names - {named})
            return
        time.sleep(_PAUSE * (number + random.random()))  # at random, to get out of step with others
    raise StoreError(
        f"other archivers rewrite the index of {escape(folder.place)} all the time: archive the "
        "run again"
    )


def _parsed(data: bytes) -> RunFigures | None:
    try:
        return parsed_index(data)
    except DamagedError:  # a damaged index is made again
        return None


def _put_digests(
    folder: Shelf, known: RunFigures | None, merged: RunFigures, fresh: Sequence[RankFigures]
) -> str:
    """Puts the digests of all ranks that have any; returns the name of the object for the index.

    "" where there is nothing to compare: of one rank, opening it tells more than its digests.
    fresh: the figures of the ranks that the index does not know yet, or that were counted anew.
    """
    seen = {one.rank for one in fresh}
    others = {*merged.ranks} - seen
    kept = digests_of_run(folder.location, known)
    found = {rank: one for rank, one in (kept or {}).items() if rank in others} | _digests(fresh)
    if len(merged.ranks) > 1:
        # The first part of a rank in parts may have digests too, from when it was all there was.
        lacking = others - {*found} - {rank for rank, _ in merged.parts}
        later = (read_index(folder.location, rank) for rank in sorted(lacking))
        found |= _digests(one for one in later if one is not None)
    if len(found) < 2:
        return ""
    try:
        data = digests_bytes(found)
    except ValueError:  # too large for readers, which then open the ranks
        return ""
    name = object_name(data)
    if kept is None or known is None or known.digests != name:
        folder.put(digests_key(name), data)
    return name


def _remove_digests(folder: Shelf, names: Iterable[str]) -> None:
    for name in names:
        if name:
            folder.remove(digests_key(name))


def _digests(ranks: Iterable[RankFigures]) -> dict[int, RankDigests]:
    return {one.rank: one.digests for one in ranks if one.digests is not None}


def _with(
    run: Location, known: RunFigures | None, ranks: Sequence[int]
) -> tuple[RunFigures, list[RankFigures]]:
    """The figures of the index with these ranks added, and those of the ranks that were added.

    They are made from all ranks of the archive where no index is known, and where a rank that it
    has got a further part since.
    """
    listed = listed_parts(run)
    if known is None or {one for one in listed if one[0] in {*known.ranks}} != known.keys:
        every = [*sealed_figures(run, sorted({rank for rank, _ in listed}), listed)]
        return RunFigures.of(every), every
    later = sorted({*ranks} - {*known.ranks})
    fresh = [*sealed_figures(run, later, listed)]
    return (known.joined(RunFigures.of(fresh)) if fresh else known), fresh
