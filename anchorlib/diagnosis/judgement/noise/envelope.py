"""How far apart runs are that should be equal: the noise against which a drift is judged.

    env(k)   = the largest relative L2 error of record k over the noise runs
    score(k) = error(A, B) / max(env(k), 0.5 eps)

An update `delta` is the difference of two rounded parameters. Its least noise is therefore half an
eps of the parameter, which in low precision may be more than the update itself.

A gradient that is zero in theory consists of noise alone: it differs by 100 % in every pair of
runs, noise runs included, and scores 1. Once the noise runs are a tenth apart from each other, the
size of a drift has no meaning any more: the step where that begins is the horizon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import Role, frontier
from anchorlib.diagnosis.judgement.rounding import errors_of_averages
from anchorlib.diagnosis.pairing import Alignment, Table, align
from anchorlib.diagnosis.sizes import Measures, measure
from anchorlib.progress import Progress
from anchorlib.reading import MapFunction

__all__ = [
    "ELEMENTS",
    "FLOOR",
    "SATURATED",
    "Envelope",
    "envelope",
    "factors_of_updates",
    "perturbation",
    "scores",
]

Array = np.ndarray[Any, Any]
FLOOR = 0.5
"""The least noise that is assumed, in eps: two correct roundings may be so far apart."""
SATURATED = 0.1
"""The relative distance between noise runs from which the size of a drift has no meaning."""
ELEMENTS = 64
"""How many elements a tensor needs to be judged alone. Scores of smaller tensors are often large by
chance: small tensors are judged together or not at all."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The noise of each pair that differs: one entry for each entry of `Measures.pair`.

    relative: the largest relative L2 error over the noise runs; nan where none has the record.
    nonfinite: whether some noise run has NaN or infinities at other elements than A.
    random: (name, kind) of tensors that differ although their inputs are equal, between A and a
        noise run or between two noise runs: their operations are not deterministic.
    horizon: the first step at which the noise is too large to judge by; None without one.
    runs: how many noise runs there are.
    floor: the least noise that a pair can have, as a relative L2 error.
    damaged: a line for each record of a noise run whose values are damaged.
    size: the largest relative change that a noise run made to its parameters; None where a noise
        run does not state it.
    pairs: the alignment of A with each noise run.
    """

    relative: Array
    nonfinite: Array
    random: frozenset[tuple[str, str]]
    horizon: int | None
    runs: int
    floor: Array
    damaged: tuple[str, ...] = ()
    size: float | None = None
    pairs: tuple[Alignment, ...] = ()

    def largest(self, rows: Sequence[int]) -> float:
        """Return the largest relative error that noise runs have in some rows of A; 0 if unknown.

        The rows are compared anew, which reads their stored values where they differ. They need not
        be among the measured pairs.
        """
        own = np.array(rows, np.int64)
        noise_of_runs = [_of_run(pairs, own, None)[0] for pairs in self.pairs] if len(own) else []
        every = np.concatenate(noise_of_runs) if noise_of_runs else np.zeros(1)
        return float(every[np.isfinite(every)].max(initial=0.0))

    def reaches(self, row: int) -> bool:
        """Return whether a row of A differs in some noise run, or lacks a partner there.

        Noise runs are moved in their parameters. What a program makes of its data alone, as a
        spectrum, is equal in all of them, so that they tell nothing of how it rounds.
        """
        for pairs in self.pairs:
            at = int(np.searchsorted(pairs.a_row, row))  # pairs are in A's order
            if pairs.a_row[at : at + 1].tolist() != [row] or not pairs.equal[at]:
                return True
        return False

    @property
    def saturated(self) -> Array:
        """A mask of the pairs whose noise, SATURATED or more, is too large to judge by."""
        saturated: Array = self.relative >= SATURATED
        return saturated


def envelope(
    alignment: Alignment,
    measures: Measures,
    runs: Sequence[Table],
    *,
    progress: Progress | None = None,
    over: MapFunction = map,
) -> Envelope:
    """Return the noise of the measured pairs; only records of noise runs that differ are read.

    measures: how far A and B are apart in each pair that differs. runs: the tables of the noise
    runs. progress: called with the bytes read so far and all there are to read, for each noise run.
    over: a `map` by which pairs are measured.
    """
    a = alignment.a
    rows = alignment.a_row[measures.pair]
    relative = np.full(len(rows), np.nan)
    nonfinite = np.zeros(len(rows), bool)
    random: set[tuple[str, str]] = set()
    damaged: list[str] = []
    every = tuple(align(a, run).settled() for run in runs)
    for pairs in every:
        random |= _random(pairs)
        noise_of_run, broken, lines = _of_run(pairs, rows, progress, over)
        relative = np.fmax(relative, noise_of_run)
        nonfinite |= broken
        damaged += lines
    if len(runs) > 1:
        random |= _random(align(runs[0], runs[1]).settled())
    horizon = _horizon(a.step[rows], relative, measures["numel"])
    floor = FLOOR * measures["eps"] * factors_of_updates(a, rows)
    floor = np.maximum(floor, errors_of_averages(alignment, rows))
    return Envelope(
        relative=relative,
        nonfinite=nonfinite,
        random=frozenset(random),
        horizon=horizon,
        runs=len(runs),
        floor=floor,
        damaged=tuple(damaged),
        size=_size(runs),
        pairs=every,
    )


def _size(runs: Sequence[Table]) -> float | None:
    sizes = [perturbation(header) for run in runs for header in run.header.values()]
    stated = [size for size in sizes if size is not None]
    return max(stated) if stated and len(stated) == len(sizes) else None


def perturbation(header: Mapping[str, Any]) -> float | None:
    """Return the relative change of a noise run's parameters; None if the header has none.

    The header's entry `perturbed` is SEED[:EPS], where EPS is a number or the name of a dtype.
    """
    _, _, size = str(header.get("perturbed", "")).partition(":")
    if size in dtypes.DTYPES:
        return dtypes.DTYPES[size].eps
    try:
        return float(size)
    except ValueError:
        return None


def _of_run(
    pairs: Alignment, rows: Array, progress: Progress | None, over: MapFunction = map
) -> tuple[Array, Array, list[str]]:
    """Return how far one noise run is from A in some rows of A.

    The three parts of the answer are the noise run's relative error in each row (0 where the two
    are equal, nan where it is unknown), whether NaN or infinities differ in each row, and a line
    for each damaged record.
    pairs: the alignment of A with the noise run. rows: the rows of A.
    """
    place = np.full(len(pairs.a), -1)
    place[pairs.a_row] = np.arange(len(pairs))
    at = place[rows]
    there = at >= 0
    differs = there & ~pairs.equal[np.maximum(at, 0)] if len(pairs) else there
    relative = np.where(there, 0.0, np.nan)
    noise = measure(pairs, at[differs], progress=progress, over=over)
    where = np.searchsorted(noise.pair, at[differs])
    relative[differs] = (noise["error_eps"] * noise["eps"])[where]
    broken = np.zeros(len(rows), bool)
    broken[differs] = noise["nonfinite"][where] > 0
    # For a damaged record only a lower bound of its noise is known. With too little noise the score
    # of the pair would be too large, so the noise counts as unknown.
    relative[np.isin(at, [damage.pair for damage in noise.damaged])] = np.nan
    return relative, broken, [damage.line for damage in noise.damaged]


def factors_of_updates(a: Table, rows: Array) -> Array:
    """Return, for each row, how many times as large as an update the updated parameter is.

    The factor of an update `delta` is the parameter's norm over the update's norm, at least 1. It
    is 1 for records of other kinds, and where the parameter was not recorded.
    """
    number = {(tensor.name, tensor.kind, tensor.rank): at for at, tensor in enumerate(a.tensors)}
    whose = np.full(len(a.tensors), -1)
    for (name, kind, rank), at in number.items():
        if kind == "delta":
            updated = number.get((name, "updated", rank))
            whose[at] = number.get((name, "value", rank), -1) if updated is None else updated
    steps = int(a.step.max(initial=0)) + 1
    known = np.flatnonzero(np.isin(a.tensor, whose))
    keys = a.tensor[known].astype(np.int64) * steps + a.step[known]
    order = np.argsort(keys, kind="stable")
    keys, known = keys[order], known[order]
    factor = np.ones(len(rows))
    asked = whose[a.tensor[rows]].astype(np.int64) * steps + a.step[rows]
    place = np.minimum(np.searchsorted(keys, asked), max(len(keys) - 1, 0))
    there = (keys[place] == asked) if len(keys) else np.zeros(len(rows), bool)
    norm = a.figures["l2"]
    with np.errstate(all="ignore"):
        ratios = norm[known[place[there]]] / norm[rows[there]]
    factor[there] = np.where(np.isfinite(ratios), np.maximum(ratios, 1.0), 1.0)
    return factor


def _random(pairs: Alignment) -> set[tuple[str, str]]:
    """Return (name, kind) of tensors that differ in two runs although their inputs are equal.

    Only records of which all parents are known count, and of these only computed ones and those
    that optimizers make or read. pairs: the alignment of the two runs.
    """
    front = frontier(pairs)
    rows = front.origins
    rows = rows[
        np.isin(front.role[rows], (Role.COMPUTED, Role.OPTIMIZER))
        & ~front.ancestry_incomplete[rows]
    ]
    tensors = (pairs.a.tensors[number] for number in np.unique(pairs.a.tensor[rows]).tolist())
    return {(tensor.name, tensor.kind) for tensor in tensors}


def _horizon(step: Array, relative: Array, numel: Array) -> int | None:
    """Return the first step in which large tensors' median noise is at least SATURATED, or None.

    step, relative, numel: an entry for each pair: its step, relative noise and number of elements.
    """
    large = (numel >= ELEMENTS) & np.isfinite(relative)
    for number, values in _by(step[large], relative[large]):
        if np.median(values) >= SATURATED:
            return int(number)
    return None


def _by(keys: Array, values: Array) -> Iterable[tuple[Any, Array]]:
    if not len(keys):
        return ()
    order = np.argsort(keys, kind="stable")
    distinct, first = np.unique(keys[order], return_index=True)
    # np.split makes one part of an empty array.
    return zip(distinct.tolist(), np.split(values[order], first[1:])[: len(distinct)], strict=True)


def scores(measures: Measures, noise: Envelope) -> Array:
    """Return the score of each pair: its error over the largest error of the noise runs.

    Where the floor (the least noise that the pair can have) is larger than that error of the noise
    runs, it is the divisor. nan where the noise of the pair is unknown or too large to judge by.
    """
    with np.errstate(all="ignore"):
        error = measures["error_eps"] * measures["eps"]
        ratios: Array = error / np.fmax(noise.relative, noise.floor)
    ratios[~np.isfinite(noise.relative) | noise.saturated] = np.nan
    return ratios
