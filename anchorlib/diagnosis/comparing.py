"""Two runs, compared: the one door to all of this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.diagnosis.alignment import Alignment
from anchorlib.diagnosis.classes import Judge
from anchorlib.diagnosis.comparison import Comparison, Counts, Divergence, Origin
from anchorlib.diagnosis.envelope import envelope, scores
from anchorlib.diagnosis.frontier import Frontier, frontier
from anchorlib.diagnosis.growth import growth
from anchorlib.diagnosis.headers import config_diff
from anchorlib.diagnosis.losses import losses
from anchorlib.diagnosis.measuring import measure
from anchorlib.diagnosis.notes import few, incomplete, notes, too_fine
from anchorlib.diagnosis.places import place_at
from anchorlib.diagnosis.selecting import aligned_runs
from anchorlib.diagnosis.table import Table
from anchorlib.diagnosis.tabling import table_of
from anchorlib.diagnosis.verdict import Drift, drift, verdict
from anchorlib.diagnosis.wording import sentence
from anchorlib.reading import Run, open_run

__all__ = ["compare", "compare_tables"]

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]
RunLike = Run | str | Path


def compare(  # noqa: PLR0913 - the contract's arguments
    a: RunLike,
    b: RunLike,
    *,
    store: str | Path | None = None,
    noise: Sequence[RunLike] = (),
    tensors: str | Sequence[str] = "*",
    names: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Where two runs part, which operation did it, and whether it matters.

    a, b: names in `store`, paths, URLs, or Run objects; both may still be written.
    noise: runs that should be the same as `a` but for rounding (`anchor noise` makes them).
    tensors: selectors of what to compare, by A's names or B's; origins are better told the more
        there is.
    names: A's name of a tensor -> B's, where they differ.
    progress: called with the bytes read so far and all there are to read, for each pair of runs.
    Raises RunNotFoundError, UnknownTensorError, CollectorError, StoreError.
    """
    selectors = [tensors] if isinstance(tensors, str) else list(tensors)
    opened = [one if isinstance(one, Run) else open_run(one, store) for one in (a, b, *noise)]
    aligned = aligned_runs(opened[0], opened[1], selectors, names or {})
    others = [table_of(run, selectors) for run in opened[2:]]
    found = compare_tables(aligned, others, progress=progress)
    return replace(found, runs=(opened[0], opened[1]))


def compare_tables(
    alignment: Alignment, noise: Sequence[Table] = (), *, progress: Progress | None = None
) -> Comparison:
    """The same, of runs that were read and aligned already."""
    alignment = alignment.settled()
    measures = measure(alignment, alignment.differing, progress=progress)
    around = envelope(alignment, measures, noise, progress=progress) if noise else None
    judged = None if around is None else scores(measures, around)
    found = frontier(alignment)
    judge = Judge(found, measures, around)
    origins = judge.origins()
    damaged = [one.line for one in measures.damaged] + list(around.damaged if around else ())
    first = _first(alignment)
    told: Drift | None = None
    if around is not None and judged is not None and len(measures):
        told = drift(alignment, measures, judged, around)
        if told.covered is False and too_fine(alignment, noise):
            told = told._replace(covered=None)
    differing = len(alignment.differing)
    answer = verdict(len(alignment), differing, origins, told)
    parted = losses(alignment)
    return Comparison(
        a=alignment.a.run,
        b=alignment.b.run,
        verdict=answer,
        sentence=sentence(answer, len(alignment), first, origins, parted, told),
        counts=_counts(alignment),
        first=first,
        origins=tuple(origins),
        config_diff=config_diff(alignment),
        growth=tuple(growth(alignment, measures, judged)),
        losses=parted,
        renamed=alignment.renamed,
        step_offset=alignment.step_offset,
        notes=(*few(damaged), *judge.skips.lines(), *notes(found, origins, around, noise)),
        incomplete=incomplete(alignment, first, answer),
        damaged=tuple(damaged),
        noise=tuple(table.run for table in noise),
        horizon=None if around is None else around.horizon,
        alignment=alignment,
        measures=measures,
        scores=judged,
        roles=_roles(found, origins),
    )


def _counts(alignment: Alignment) -> Counts:
    differing = len(alignment.differing)
    return Counts(
        matched=len(alignment),
        identical=len(alignment) - differing,
        differing=differing,
        only_a=len(alignment.only_a),
        only_b=len(alignment.only_b),
    )


def _first(alignment: Alignment) -> Divergence | None:
    """The first difference in order of execution: by step, then by place in the rank's run."""
    differing = alignment.differing
    if not len(differing):
        return None
    a, rows = alignment.a, alignment.a_row
    rank = np.array([tensor.rank for tensor in a.tensors])[a.tensor[rows]]
    order = np.lexsort((rank, a.order[rows], a.step[rows]))
    at = int(np.argmax(~alignment.equal[order]))
    row = int(rows[order[at]])
    return Divergence(place_at(a, row), int(a.order[row]), at)


def _roles(found: Frontier, origins: Sequence[Origin]) -> Array:
    """What each pair is: "", "receiver", "origin", or the class of an origin that is listed."""
    alignment = found.alignment
    status = np.where(alignment.equal, "", "receiver").astype("U16")
    pair = np.full(len(alignment.a), -1)
    pair[alignment.a_row] = np.arange(len(alignment))
    status[pair[found.origins]] = "origin"
    classes = {(one.place.name, one.place.kind): one.cls for one in origins}
    tensors = [classes.get((one.name, one.kind), "") for one in alignment.a.tensors]
    for row in found.origins.tolist():
        if cls := tensors[int(alignment.a.tensor[row])]:
            status[pair[row]] = cls
    return status
