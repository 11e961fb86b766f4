"""The comparison of two runs as a whole: from the opened runs to the answer, a `Comparison`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier, config_diff, drawn_otherwise, frontier
from anchorlib.diagnosis.comparison import Comparison, Divergence
from anchorlib.diagnosis.digest_comparison import compare_digests
from anchorlib.diagnosis.judgement import (
    Benign,
    Cuts,
    Drift,
    Envelope,
    Judge,
    Leaving,
    Origin,
    Partials,
    benign,
    completeness,
    cuts,
    drift,
    envelope,
    growth,
    leaves_noise,
    losses,
    measured_from,
    only_dead_ends,
    partials,
    preceding,
    times_of_origins,
    turns,
    verdict,
)
from anchorlib.diagnosis.noise_runs import check_noise
from anchorlib.diagnosis.notes import few, incomplete, notes, reordering, too_fine
from anchorlib.diagnosis.pairing import (
    NO_REPRESENTATIVES,
    Alignment,
    Counts,
    Table,
    aligned_runs,
    place_at,
    table_of,
)
from anchorlib.diagnosis.recomputation import replayed
from anchorlib.diagnosis.sizes import Measures, measure
from anchorlib.diagnosis.tracing import Traces, traces_of
from anchorlib.diagnosis.wording import SentenceContext, sentence
from anchorlib.progress import Progress
from anchorlib.reading import MapFunction, Run, open_run

__all__ = ["compare", "compare_tables"]

SETTLED = ("identical", "expected")
Array = np.ndarray[Any, Any]
RunLike = Run | str | Path


def compare(  # noqa: PLR0913 - the contract's arguments
    a: RunLike,
    b: RunLike,
    *,
    store: str | Path | None = None,
    noise: Sequence[RunLike] = (),
    reference: RunLike | None = None,
    tensors: str | Sequence[str] = "*",
    names: Mapping[str, str] | None = None,
    replay: bool = False,
    ops: bool | None = None,
    progress: Progress | None = None,
    over: MapFunction | None = None,
    beforehand: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare two runs: where they part, which operation did it, and whether it matters.

    a, b: names in `store`, paths, URLs, or Run objects; both may still be written.
    store: where runs that are given by name are looked up; None: the default store.
    noise: runs that should differ from `a` by rounding alone (`anchor noise` makes such runs).
    reference: a run that is nearer to the truth than both, such as one in float64. The answer
        then says for each origin which of A and B is nearer to the reference, and is otherwise
        unchanged.
    tensors: selectors of the tensors to compare, by A's names or B's. The more tensors are
        compared, the more precisely origins are located.
    names: A's name of a tensor -> B's, where they differ.
    replay: whether the first origins are computed again from stored values, to say which formula
        each run used and which of the two is nearer to the truth (`anchorlib.replay`).
    ops: whether the traced operations of both runs (`session.trace`) are compared too; None: where
        both runs have some. Their differences say how B's computation differs from A's, and never
        change the verdict.
    progress: called with the bytes read so far and all there are to read, for each pair of runs.
    over: a `map` that measures how far records are apart; None: this process does. The `map` of an
        `anchorlib.cluster.Cluster` has a dask cluster measure, with the same answer to the bit.
    beforehand: called before any rank of two archived runs is read, if their digests show that some
        ranks differ. It is given a line that says which ranks differ, and since which step.

    Raises RunNotFoundError where a run is not found, UnknownTensorError where a selector names no
    tensor, StoreError where a store cannot be read, CollectorError where a collector or an object
    store does not answer, and OptionError where a noise run is A or B itself or another program's,
    and where `ops` is True and the runs have no traced step in common.
    """
    selectors = [tensors] if isinstance(tensors, str) else list(tensors)
    opened = [_opened(one, store) for one in (a, b, *noise)]
    third = None if reference is None else _opened(reference, store)
    known = compare_digests(opened[0], opened[1])
    if known is not None and known.parting and beforehand is not None:
        beforehand(known.line())
    if known is not None and not known.is_traced and ops is None:
        ops = False
    # Noise is judged by the records of all ranks, and traced operations are found by them.
    standing = NO_REPRESENTATIVES if known is None or noise or ops is not False else known.standing
    aligned = aligned_runs(opened[0], opened[1], selectors, names or {}, standing)
    others = [table_of(run, selectors) for run in opened[2:]]
    traces = traces_of(opened[0], opened[1], aligned, asked=ops)
    answer = compare_tables(aligned, others, traces=traces, progress=progress, over=over or map)
    if replay:
        answer = replace(answer, origins=tuple(replayed(answer.origins)))
    if third is not None:
        origins = measured_from(table_of(third), answer.origins, progress=progress)
        answer = replace(answer, origins=origins, reference=third.name)
    return replace(answer, runs=(opened[0], opened[1]))


def _opened(run: RunLike, store: str | Path | None) -> Run:
    return run if isinstance(run, Run) else open_run(run, store)


def compare_tables(
    alignment: Alignment,
    noise: Sequence[Table] = (),
    *,
    traces: Traces | None = None,
    progress: Progress | None = None,
    over: MapFunction = map,
) -> Comparison:
    """Compare two runs whose records were read and paired already.

    alignment: the pairs of records.
    noise: the tables of the noise runs.
    traces: the traced operations of both runs; None where they are not compared.
    progress: called with the bytes read so far and all there are to read, for each pair of runs.
    over: a `map` by which the pairs are measured, such as one that shares the work out.
    """
    alignment = alignment.settled()
    asked: Any = {"progress": progress, "over": over}
    every = measure(alignment, alignment.differing, **asked)
    alike, parts = benign(alignment, every), partials(alignment)
    judged, recut = _set_aside(alignment, every, alike, parts)
    measures = every.without(np.flatnonzero(judged.equal & ~alignment.equal))
    around = _noise_around(judged, measures, noise, asked)
    front = frontier(judged, np.union1d(parts.rows, recut.rows))
    scored, turned = turns(front, measures, around)
    judge = Judge(front, measures, around, recut.step)
    origins = judge.origins()
    damaged = [line for merging in alignment.merged for line in merging.damaged]
    damaged += [damage.line for damage in every.damaged] + list(around.damaged if around else ())
    first, ends = _first(judged), only_dead_ends(judged, measures)
    before_skip = _before(judged, measures, scored, judge.classes.overflows.first)
    noise_drift, leaving = _judged(judged, measures, before_skip, around, noise, origins)
    depends = parts.unknown(None if first is None else first.place, origins)
    harmless = ends or (first is None and not depends)
    answer = verdict(_counts(alignment), origins, noise_drift, harmless=harmless)
    if traces is not None:
        origins = traces.with_operations(origins)  # after the verdict, which traces must not change
    config, parted, complete = config_diff(alignment), losses(judged), completeness(alignment)
    before = preceding(front, first.place, origins[0]) if first and origins else ""
    context = SentenceContext(
        benign=alike.lines(),
        losses=parted,
        drift=noise_drift,
        leaving=leaving,
        complete=complete,
        ends=ends,
        eval_since=alignment.eval_since,
        preceding=before,
        merged=[
            *dict.fromkeys(merging.clause for merging in alignment.merged),
            *reordering(alignment),
        ],
        drawn=drawn_otherwise(alignment),
        config=config,
        partial=parts.clause,
        unused=alike.unused,
    )
    return Comparison(
        a=alignment.a.run,
        b=alignment.b.run,
        verdict=answer,
        sentence=sentence(answer, len(alignment), first, origins, context),
        counts=_counts(alignment),
        first=first or _first(alignment),
        origins=tuple(origins),
        config_diff=config,
        growth=tuple(growth(judged, measures, scored)),
        losses=parted,
        renamed=alignment.renamed,
        step_offset=alignment.step_offset,
        notes=(
            *few(damaged),
            *alike.lines(),
            *recut.lines(),
            *judge.classes.skips.lines(),
            *(() if traces is None else traces.notes),
            *(turn.line() for turn in turned),
            *notes(front, origins, around, noise),
        ),
        leaves_noise=leaving,
        complete=complete,
        incomplete=depends or incomplete(complete, alignment, None if answer in SETTLED else first),
        damaged=tuple(damaged),
        noise=tuple(table.run for table in noise),
        ops=None if traces is None else traces.operations,
        horizon=None if around is None else around.horizon,
        alignment=alignment,
        measures=every,
        scores=None if scored is None else _spread(scored, measures, every),
        roles=_roles(front, origins),
    )


def _noise_around(
    judged: Alignment, measures: Measures, noise: Sequence[Table], asked: Mapping[str, Any]
) -> Envelope | None:
    """Return how far the noise runs are from A; None without noise runs.

    asked: the options of `envelope`. Raises OptionError for a run that is no noise run of A.
    """
    if not noise:
        return None
    around = envelope(judged, measures, noise, **asked)
    check_noise(judged, noise, around.pairs)
    return around


def _set_aside(
    alignment: Alignment, every: Measures, alike: Benign, parts: Partials
) -> tuple[Alignment, Cuts]:
    """Return the alignment in which pairs whose difference does not matter count as equal.

    Also returns, as `Cuts`, the pairs that differ only because the runs call modules differently
    for equal work; these count as equal in the returned alignment, too.
    every: how far the differing pairs are apart. alike: pairs whose difference is benign. parts:
    gradients of which one run alone recorded only a part; they are set aside as well.
    """
    judged = parts.without(alike.without(alignment))
    recut = cuts(judged, every.without(np.flatnonzero(judged.equal & ~alignment.equal)))
    return recut.without(judged), recut


def _before(
    judged: Alignment, measures: Measures, scored: Array | None, parted: int | None
) -> Array | None:
    """Return `scored` with nan from the step `parted` on, as these steps are not judged.

    parted: the first step that a GradScaler rightly skipped in one run alone; None without one.
        From then on the runs have different parameters, which noise runs do not imitate.
    """
    if scored is None or parted is None:
        return scored
    steps = judged.a.step[judged.a_row[measures.pair]]
    return np.where(steps < parted, scored, np.nan)


def _judged(
    judged: Alignment,
    measures: Measures,
    scored: Array | None,
    around: Envelope | None,
    noise: Sequence[Table],
    origins: Sequence[Origin],
) -> tuple[Drift | None, Leaving | None]:
    """Return how far the runs drift apart, and the first record that differs by more than noise.

    Both are None without noise runs, and where no pair was measured. The record is None, too,
    where no record differs by more than noise. Where one does, the noise runs do not cover the
    drift. But noise runs that do not cover the drift may have been perturbed by too little to judge
    it (`too_fine`): then `covered` is None, as undecided, and so is the record.
    scored: the error of each entry of `measures`, as a multiple of the noise runs' error.
    around: how far the noise runs are from A.
    origins: the records where the runs part.
    """
    if scored is None or around is None or not len(measures):
        return None, None
    times = times_of_origins(origins, around)
    leaving = leaves_noise(judged, measures, scored / times)
    noise_drift = drift(judged, measures, scored / times, around, origins)
    noise_drift = noise_drift._replace(worst=noise_drift.worst * times)
    covered = noise_drift.covered if leaving is None else False
    if covered is False and too_fine(judged, noise):
        return noise_drift._replace(covered=None), None
    if leaving is not None:
        leaving = replace(leaving, score=leaving.score * times)
    return noise_drift._replace(covered=covered), leaving


def _spread(scored: Array, measures: Measures, every: Measures) -> Array:
    """Return the scores of `measures`, spread over `every`: nan for entries without a score."""
    spread = np.full(len(every), np.nan)
    spread[np.searchsorted(every.pair, measures.pair)] = scored
    return spread


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
    """Return the first pair that differs, by step, then order, then rank; None if none differs."""
    differing = alignment.differing
    if not len(differing):
        return None
    a, rows = alignment.a, alignment.a_row
    rank = a.rank[rows]
    order = np.lexsort((rank, a.order[rows], a.step[rows]))
    at = int(np.argmax(~alignment.equal[order]))
    row = int(rows[order[at]])
    return Divergence(place_at(a, row), int(a.order[row]), at)


def _roles(front: Frontier, origins: Sequence[Origin]) -> Array:
    """Return each pair's role: "" (equal), "receiver", "origin", or the class of a listed origin.

    A receiver differs because an earlier record differs; an origin differs by itself.
    """
    alignment = front.alignment
    status = np.full(len(alignment), "", object)  # of few words, each held once
    status[~alignment.equal] = "receiver"
    pair = np.full(len(alignment.a), -1)
    pair[alignment.a_row] = np.arange(len(alignment))
    status[pair[front.origins]] = "origin"
    classes = {(origin.place.name, origin.place.kind): origin.cls for origin in origins}
    tensors = [classes.get((tensor.name, tensor.kind), "") for tensor in alignment.a.tensors]
    for row in front.origins.tolist():
        if cls := tensors[int(alignment.a.tensor[row])]:
            status[pair[row]] = cls
    return status
