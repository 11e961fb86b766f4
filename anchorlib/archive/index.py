"""Writes the index of an archived run, which several archivers may update at the same time.

Each update is written on the condition that the index has not changed since it was read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from anchorlib.errors import DamagedError, StoreError
from anchorlib.names import escape
from anchorlib.store import Location, listed_parts
from anchorlib.store.format import INDEX, digests_key, steps_key
from anchorlib.store.objects import Shelf
from anchorlib.store.read import (
    RunFigures,
    digests_bytes,
    digests_of_run,
    index_bytes,
    object_name,
    parsed_index,
    sealed_figures,
    steps_bytes,
    steps_of_run,
)
from anchorlib.store.seal import RankDigests, RankFigures, StepPool, read_index

__all__ = ["put_index"]

_TRIES = 30
_PAUSE = 0.05  # seconds, times the number of failed tries: others rewrite the index too


def put_index(folder: Shelf, ranks: Iterable[int], anew: Iterable[int] = ()) -> None:
    """Add archived ranks to the index of their run; make the index where there is none.

    The index has totals over all ranks, which readers would else have to read rank by rank. It
    refers to two objects with facts about steps: digests (hashes), and figures (counts,
    histograms). These objects are written before the index. After the index was written, two
    kinds of objects are removed: those to which only the earlier index refers, and those that were
    written in vain because another archiver changed the index meanwhile. An index too large for
    readers is removed: readers then read the ranks themselves.

    folder: the run's objects in the archive. ranks: numbers of the ranks to add. anew: numbers of
        ranks that were completed just now. If the present index has one of these already, it counts
        an earlier recording of that rank, and a new index is made from all ranks in the archive.

    Raises StoreError where other archivers change the index again and again, or where the archive
    cannot be read or written; CollectorError where it does not answer.
    """
    marked, keys = {*anew}, set[str]()
    for number in range(_TRIES):
        stored = folder.fetch(INDEX)
        known = None if stored is None else _parsed(stored[0])
        keys |= _named(known)
        if known is not None and marked & {*known.ranks}:
            known = None
        merged, fresh = _with(folder.location, known, list(ranks))
        steps = _put_steps(folder, known, merged, fresh)
        merged = replace(merged, by_step=steps, digests=_put_digests(folder, known, merged, fresh))
        keys |= _named(merged)
        try:
            data = index_bytes(merged)
        except ValueError:  # too large for readers, which then read the ranks themselves
            folder.remove(INDEX)
            _remove(folder, keys)
            return
        if stored is None:
            done = folder.create(INDEX, data)
        else:
            done = stored[0] == data or folder.swap(INDEX, data, stored[1])
        if done:
            _remove(folder, keys - _named(merged))
            return
        time.sleep(_PAUSE * (number + random.random()))  # at random, to get out of step with others
    raise StoreError(
        f"other archivers rewrite the index of {escape(folder.place)} all the time: archive the "
        "run again"
    )


@dataclass(frozen=True, slots=True)
class _Fresh:
    """What was counted of the ranks that the present index lacks, or that were counted anew.

    ranks: the totals of each such rank, without its totals by step. steps: the totals by step,
        added up over these ranks, since separate totals of a thousand ranks might not fit in
        memory.
    """

    ranks: list[RankFigures]
    steps: StepPool

    @classmethod
    def of(cls, ranks: Iterable[RankFigures]) -> _Fresh:
        figures, steps = [], StepPool()
        for one in ranks:
            steps.add(one.by_step)
            figures.append(replace(one, by_step=None))
        return cls(figures, steps)

    @property
    def numbers(self) -> set[int]:
        return {one.rank for one in self.ranks}


def _named(figures: RunFigures | None) -> set[str]:
    """Return the keys of the objects about steps that an index refers to: none, one or two.

    One holds digests (hashes) of the steps of all ranks, the other their counts and histograms.
    """
    if figures is None:
        return set()
    made = ((digests_key, figures.digests), (steps_key, figures.by_step))
    return {key(name) for key, name in made if name}


def _parsed(data: bytes) -> RunFigures | None:
    try:
        return parsed_index(data)
    except DamagedError:  # a damaged index is made again
        return None


def _put_digests(folder: Shelf, known: RunFigures | None, merged: RunFigures, fresh: _Fresh) -> str:
    """Store the digests of all ranks that have any in one object; return the object's SHA-256.

    Digests are hashes of the records of each range of steps. Return "" where nothing is stored:
    where fewer than two ranks have digests (readers open a single rank instead), and where the
    object would be too large.

    known: the present index; None if there is none. merged: the new index. fresh: what was counted
        of the ranks that were added.
    """
    others = {*merged.ranks} - fresh.numbers
    kept = digests_of_run(folder.location, known)
    digests = {rank: one for rank, one in (kept or {}).items() if rank in others}
    digests |= _digests(fresh.ranks)
    if len(merged.ranks) > 1:
        # The first part of a rank in parts may have digests too, from when it was all there was.
        lacking = others - {*digests} - {rank for rank, _ in merged.parts}
        later = (read_index(folder.location, rank) for rank in sorted(lacking))
        digests |= _digests(one for one in later if one is not None)
    if len(digests) < 2:
        return ""
    try:
        data = digests_bytes(digests)
    except ValueError:  # too large for readers, which then open the ranks
        return ""
    return _put(folder, digests_key, data, known.digests if kept is not None and known else "")


def _put_steps(folder: Shelf, known: RunFigures | None, merged: RunFigures, fresh: _Fresh) -> str:
    """Store the figures of each step, over all ranks, in one object; return the object's SHA-256.

    Figures are counts, extremes and histograms. Return "" where nothing is stored: where a rank
    has no figures (an older version archived it), where the object would be too large, and for a
    run of one rank, which readers open instead.

    known: the present index; None if there is none. merged: the new index. fresh: what was counted
        of the ranks that were added.
    """
    if len(merged.ranks) < 2:
        return ""
    kept, pool = steps_of_run(folder.location, known), StepPool()
    others = sorted({*merged.ranks} - fresh.numbers)
    if kept is not None and known is not None and others == [*known.ranks]:
        pool.add(kept)
    else:
        listed = listed_parts(folder.location) if others else []
        for one in sealed_figures(folder.location, others, listed):
            pool.add(one.by_step)
            if one.by_step is None:
                break
    if fresh.ranks:
        pool.add(fresh.steps.total())
    total = pool.total()
    if total is None or total.ranks != merged.ranks:
        return ""
    try:
        data = steps_bytes(total)
    except ValueError:  # too large for readers, which then open the ranks
        return ""
    return _put(folder, steps_key, data, known.by_step if kept is not None and known else "")


def _put(folder: Shelf, key: Callable[[str], str], data: bytes, there: str) -> str:
    """Store an object under a key made of its SHA-256; return the SHA-256 in hex.

    key: makes the object's key from the SHA-256. data: the object's content. there: the SHA-256 of
        the object that the present index refers to, "" for none. If it equals that of `data`,
        nothing is stored.
    """
    name = object_name(data)
    if there != name:
        folder.put(key(name), data)
    return name


def _remove(folder: Shelf, keys: Iterable[str]) -> None:
    for key in keys:
        folder.remove(key)


def _digests(ranks: Iterable[RankFigures]) -> dict[int, RankDigests]:
    return {one.rank: one.digests for one in ranks if one.digests is not None}


def _with(
    run: Location, known: RunFigures | None, ranks: Sequence[int]
) -> tuple[RunFigures, _Fresh]:
    """Return the totals of the index with these ranks added, and those of the added ranks alone.

    run: the run's folder in the archive. known: the present index; None if there is none. Without
        an index, or if the index has other parts of its ranks than the archive, all ranks in the
        archive count as added. ranks: the ranks to add; those that the index has are skipped.
    """
    listed = listed_parts(run)
    if known is None or {one for one in listed if one[0] in {*known.ranks}} != known.keys:
        every = _Fresh.of(sealed_figures(run, sorted({rank for rank, _ in listed}), listed))
        return RunFigures.of(every.ranks), every
    later = sorted({*ranks} - {*known.ranks})
    fresh = _Fresh.of(sealed_figures(run, later, listed))
    return (known.joined(RunFigures.of(fresh.ranks)) if fresh.ranks else known), fresh
