"""The index of an archived run, which several archivers may rewrite at once, each on condition."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

from anchorlib.errors import DamagedError, StoreError
from anchorlib.names import escape
from anchorlib.store import Location, listed_parts
from anchorlib.store.format import INDEX
from anchorlib.store.objects import Shelf
from anchorlib.store.read import (
    RunFigures,
    index_bytes,
    parsed_index,
    sealed_figures,
)

__all__ = ["put_index"]

_TRIES = 30
_PAUSE = 0.05  # seconds, times the number of failed tries: others rewrite the index too


def put_index(folder: Shelf, ranks: Iterable[int], anew: Iterable[int] = ()) -> None:
    """Adds archived ranks to the index of their run, which is made where there is none.

    folder: the run's objects. anew: ranks that were marked as whole just now. An index that has
        them already has figures of an earlier recording, so it is made again from all ranks.

    Raises StoreError, CollectorError.
    """
    marked = {*anew}
    for number in range(_TRIES):
        found = folder.fetch(INDEX)
        known = None if found is None else _parsed(found[0])
        if known is not None and marked & {*known.ranks}:
            known = None
        merged = _with(folder.location, known, list(ranks))
        try:
            data = index_bytes(merged)
        except ValueError:  # too large for readers, which then read the ranks themselves
            folder.remove(INDEX)
            return
        if found is None:
            done = folder.create(INDEX, data)
        else:
            done = found[0] == data or folder.swap(INDEX, data, found[1])
        if done:
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


def _with(run: Location, known: RunFigures | None, ranks: Sequence[int]) -> RunFigures:
    """The figures of the index with these ranks added.

    They are made from all ranks of the archive where no index is known, and where a rank that it
    has got a further part since.
    """
    listed = listed_parts(run)
    if known is None or {one for one in listed if one[0] in {*known.ranks}} != known.keys:
        return RunFigures.of(sealed_figures(run, sorted({rank for rank, _ in listed}), listed))
    later = sorted({*ranks} - {*known.ranks})
    fresh = [*sealed_figures(run, later, listed)]
    return known.joined(RunFigures.of(fresh)) if fresh else known
