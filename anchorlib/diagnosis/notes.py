"""The notes of a comparison: what could not be decided, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import Frontier, from_outside
from anchorlib.diagnosis.comparison import Divergence
from anchorlib.diagnosis.judgement import Completeness, Envelope, Origin, perturbation
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.names import escape, join
from anchorlib.scope import EVAL, NO_GRAD

__all__ = ["few", "incomplete", "notes", "reordering", "too_fine"]

Array = np.ndarray[Any, Any]
SHOWN = 3
COUNTER = "num_batches_tracked"
"""The last part of the name of the buffer in which torch's batch norms count their calls."""


def notes(
    frontier: Frontier, origins: Sequence[Origin], noise: Envelope | None, runs: Sequence[Table]
) -> list[str]:
    """Return the notes of a comparison, a line each: what could not be decided, and why.

    frontier: the differences of the two runs, and which of them earlier differences explain.
    origins: the listed origins.
    noise: how the noise runs differ from A; None without noise runs.
    runs: the tables of the noise runs.
    """
    alignment = frontier.alignment
    lines: list[str] = []
    for table in (alignment.a, alignment.b):
        lines += _modes(table)
        lines += _gaps(table)
    lines += _from_outside(alignment)
    for merging in alignment.merged:
        lines += [merging.clause, *merging.lines]
    lines += reordering(alignment)
    lines += _strangers(alignment)
    lines += _guesses(alignment)
    lines += _steps(alignment)
    lines += _phases(alignment)
    lines += _flips(frontier)
    if any(
        origin.measure.measured == "shape" and origin.cls == "starts_unequal" for origin in origins
    ):
        lines.append(
            "the batches differ in size: what follows from them cannot be compared; what both runs "
            "make of a whole step can (--tensor '*@updated')"
        )
    if noise is not None and noise.horizon is not None:
        lines.append(
            f"from step {noise.horizon} on the noise runs are a tenth apart: element by element, "
            "nothing can be said there"
        )
    if noise is not None and too_fine(frontier.alignment, runs):
        lines.append(
            "the noise runs were perturbed by less than the coarsest element type rounds: they "
            "judge no drift (anchor noise takes the right size by itself, or --eps)"
        )
    if any(origin.cls == "window_start" for origin in origins):
        lines.append("record every pass of the first steps (mode All) to see where it began")
    return list(dict.fromkeys(lines))


def few(lines: Sequence[str]) -> list[str]:
    """Return the first three of some lines on damaged records, and a line that counts the rest.

    Without a rest, that line is left out.
    """
    left = len(lines) - SHOWN
    return [*lines[:SHOWN], *([f"and {left} more are damaged: anchor verify"] if left > 0 else [])]


def reordering(alignment: Alignment) -> list[str]:
    """Return, in a list, a clause that B's samples were put into A's order; [] if they were not."""
    if alignment.reordered is None:
        return []
    since = f" from step {alignment.reordered} on" if alignment.reordered else ""
    return [
        f"B has the samples of a batch in another order{since}: each is compared with its own of A"
    ]


def _strangers(alignment: Alignment) -> Iterable[str]:
    """Return lines on why the two runs have no pair of records; [] where they have a pair.

    [] is returned, too, where the reason is not known.
    """
    a, b = alignment.a, alignment.b
    if len(alignment):
        return []
    empty = [table for table in (a, b) if not len(table)]
    if empty:
        return [f"{escape(table.run)} holds no record of what was selected" for table in empty]
    modes = [sorted({tensor.mode for tensor in table.tensors}) for table in (a, b)]
    if not {t[:2] for t in a.tensors} & {t[:2] for t in b.tensors}:
        return ["no tensor of one has a name of the other: --map says what is called otherwise"]
    if set(modes[0]) & set(modes[1]):
        return []
    modes_a, modes_b = (
        f"{', '.join(map(escape, those))} in {escape(t.run)}"
        for those, t in zip(modes, (a, b), strict=True)
    )
    return [f"the modes differ ({modes_a}; {modes_b}), and records of two modes are never compared"]


def _guesses(alignment: Alignment) -> Iterable[str]:
    """Return a line on names matched by a guess, and what follows from it; [] without a guess."""
    guesses = [renaming for renaming in alignment.renamed if renaming.how == "guess"]
    if not guesses:
        return []
    one = guesses[0]
    more = f" and {len(guesses) - 1} more" if len(guesses) > 1 else ""
    name = f"{escape(one.a)} may be {escape(one.b)} in {escape(alignment.b.run)}{more}"
    if alignment.guessed.any():
        return [f"{name}: a guess, and nothing else is common: a map of names would make it sure"]
    return [f"{name}: a guess, of which nothing was concluded: a map of names would make it sure"]


def _modes(table: Table) -> Iterable[str]:
    heads = {tensor.mode.partition(":")[0] for tensor in table.tensors}
    said = {
        "sum": "holds sums: origins are told to the window, not to the pass",
        "final": "holds the last record of each window: what came before in it is not seen",
        "every_n": "was sampled: what happened between its records is not seen",
        "summary": "holds summaries without values: sizes are lower bounds",
    }
    return [f"{escape(table.run)} {said[head]}" for head in sorted(heads & set(said))]


def _gaps(table: Table) -> Iterable[str]:
    if not table.gaps:
        return []
    count = sum(table.gaps.values())
    name = escape(join(*next(iter(table.gaps))))
    more = f" and {len(table.gaps) - 1} more" if len(table.gaps) > 1 else ""
    return [f"{escape(table.run)} has gaps: {count} records are missing, of {name}{more}"]


def _from_outside(alignment: Alignment) -> Iterator[str]:
    """Yield a line for a run that, unlike the other, may have recorded gradients only in part.

    Compiled code may use a gradient inside, where no hook sees it.
    """
    a, b = from_outside(alignment.a), from_outside(alignment.b)
    for table, names in ((alignment.a, a - b), (alignment.b, b - a)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield (
                f"{escape(table.run)} saw the gradient of {escape(min(names))}{more} from outside "
                "compiled code: what that code kept of it was not recorded"
            )


def _steps(alignment: Alignment) -> Iterable[str]:
    if not alignment.step_offset:
        return []
    sign = "+" if alignment.step_offset > 0 else "-"
    return [
        f"step n of {escape(alignment.a.run)} was compared with "
        f"step n {sign} {abs(alignment.step_offset)} of {escape(alignment.b.run)}"
    ]


def _phases(alignment: Alignment) -> Iterator[str]:
    """Yield a line if one run evaluates in eval mode, the other in training mode under `no_grad`.

    The forwards of these two phases ("eval" and "no_grad") are not paired.
    """
    a, b = (
        {table.phases[code] for code in np.unique(table.phase).tolist()}
        for table in (alignment.a, alignment.b)
    )
    for table, own, other in ((alignment.b, b, a), (alignment.a, a, b)):
        if NO_GRAD in own - other and EVAL in other - own:
            yield (
                f"{escape(table.run)} looks on in training mode (phase no_grad) where the other "
                "evaluates (phase eval), so these forwards are not compared: model.eval()?"
            )


def _flips(frontier: Frontier) -> Iterator[str]:
    """Yield lines on integers, such as indices or counts, that differ as earlier values differ.

    There is at most one line for counters of calls (batch norms), and one for other integers.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    whole = np.array([dtypes.dtype(name).family in ("int", "bool") for name in a.dtypes] or [False])
    rows = np.flatnonzero((frontier.status == 1) & frontier.explained & whole[a.dtype])
    counting = _counters(a, rows)
    for row in rows[counting][:1].tolist():
        at = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
        sides = [int(t.figures["min"][one]) for t, one in ((a, row), (alignment.b, at))]
        yield (
            f"{escape(a.tensors[a.tensor[row]].name)} counts calls: {sides[0]:,} in A, "
            f"{sides[1]:,} in B at step {int(a.step[row])}"
        )
    for row in rows[~counting][:1].tolist():
        name = escape(a.tensors[a.tensor[row]].name)
        yield (
            f"{name} flips at step {int(a.step[row])}, pass {int(a.pass_index[row])}: integers "
            "decided from values that differ; from there on the runs take different ways"
        )


def _counters(table: Table, rows: Array) -> Array:
    """Return for each of `rows` whether it records how often a batch norm was called.

    A batch norm counts its calls in its buffer `num_batches_tracked`, a single number.
    """
    counting = table.where(lambda tensor: tensor.name.rpartition(".")[2] == COUNTER)
    of_rows: Array = counting[rows] & (table.figures["numel"][rows] == 1)
    return of_rows


def too_fine(alignment: Alignment, runs: Sequence[Table]) -> bool:
    """Return whether the noise runs were perturbed by less than the coarsest dtype in use rounds.

    Such noise runs say nothing of how far rounding carries a run. False where none of them states
    how far it was perturbed.
    runs: the tables of the noise runs.
    """
    sizes = [perturbation(header) for run in runs for header in run.header.values()]
    known = [size for size in sizes if size is not None]
    tables = (alignment.a, alignment.b)
    used = [dtypes.dtype(t.dtypes[code]).eps for t in tables for code in np.unique(t.dtype)]
    return bool(known) and max(known) * 1.5 < max((eps or 0.0 for eps in used), default=0.0)


def incomplete(complete: Completeness, alignment: Alignment, first: Divergence | None) -> bool:
    """Return whether missing records may hide a difference that the answer would have named.

    complete: whether the runs are complete, and what they lack.
    first: the first difference, where the answer is about that: records that are missing after its
    step cannot hide an earlier difference. None where the answer is about all steps.
    """
    if first is None:
        return not complete
    # A gap of unknown beginning may be anywhere, so it counts as a gap from step 0 on.
    tables = [table for table in (alignment.a, alignment.b) if table.gaps]
    return any((table.gaps_from or 0) <= first.place.step for table in tables)
