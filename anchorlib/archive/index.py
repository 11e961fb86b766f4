"""The index of an archived run: rewritten with a condition, by however many archivers at once."""

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
_PAUSE = 0.05  # seconds, times how often it did not work: others are rewriting it, too


def put_index(folder: Shelf, ranks: Iterable[int], anew: Iterable[int] = ()) -> None:
    """Takes archived ranks into the index of their run, which need not be there yet.

    folder: the run's objects. anew: those that were marked as whole just now: what an index says of
    them already is of an earlier recording, and it is made again from all ranks.

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
        except ValueError:  # too large: readers ask the ranks
            folder.remove(INDEX)
            return
        if found is None:
            done = folder.create(INDEX, data)
        else:
            done = found[0] == data or folder.swap(INDEX, data, found[1])
        if done:
            return
        time.sleep(_PAUSE * (number + random.random()))  # only to be out of step
    raise StoreError(
        f"the index of {escape(folder.place)} is rewritten by others all the time: archive it again"
    )


def _parsed(data: bytes) -> RunFigures | None:
    try:
        return parsed_index(data)
    except DamagedError:  # made again
        return None


def _with(run: Location, known: RunFigures | None, ranks: Sequence[int]) -> RunFigures:
    """The index with these ranks; made from all ranks of the archive where it was none, or where a
    part of a rank came to those that it speaks of.
    """
    listed = listed_parts(run)
    if known is None or {one for one in listed if one[0] in {*known.ranks}} != known.keys:
        return RunFigures.of(sealed_figures(run, sorted({rank for rank, _ in listed}), listed))
    later = sorted({*ranks} - {*known.ranks})
    fresh = [*sealed_figures(run, later, listed)]
    return known.joined(RunFigures.of(fresh)) if fresh else known
