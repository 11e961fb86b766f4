"""How many backward passes belong to an optimizer's step, where one run has fewer of them.

    4 backward passes reach it in step 7 of A, 3 in B
    1 backward pass reaches it in step 7 of A, 2 in B: B's optimizer did not step before pass 1
    step 7 has 4 backward passes in A, 3 in B

The gradients that the step takes are then made of other passes in the two runs: of fewer
micro-batches, or of those that came before a step that was taken too early.
"""

from __future__ import annotations

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Role, plain
from anchorlib.diagnosis.judgement.series import series
from anchorlib.diagnosis.pairing import Table

__all__ = ["other_passes", "passes_apart"]


def passes_apart(frontier: Frontier, row: int) -> str:
    """Return a clause on how many backward passes made an optimizer's row, where one run has fewer.

    The run with fewer passes must have recorded the gradient in some pass of the step, and must
    have no record at all of the passes that it lacks. (If it has records of those passes, the graph
    is cut, or less was recorded.) "" where this does not hold.
    row: a row of A; "" unless an optimizer makes or reads it.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    if frontier.role[row] != Role.OPTIMIZER or alignment.merged or a.gaps or b.gaps:
        return ""
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    names = {renaming.a: renaming.b for renaming in alignment.renamed}
    for parent in frontier.parents(row):
        name, kind, *_ = a.tensors[a.tensor[parent]]
        if kind not in ("grad", "pass_grad") or frontier.role[parent] == Role.OPTIMIZER:
            continue
        own = _passes(a, row, name, kind)
        other = _passes(b, row_b, names.get(name, name), kind)
        few, many = sorted((own, other), key=len)
        seen = _seen(*((a, row) if few is own else (b, row_b)))
        if 0 < len(few) < len(many) and not set(many[len(few) :]) & seen:
            passes = f"{len(own)} backward pass{'es reach' if len(own) > 1 else ' reaches'}"
            said = f"{passes} it in step {int(a.step[row])} of A, {len(other)} in B"
            if len(many) % len(few):
                return said
            run = "A" if many is own else "B"
            return f"{said}: {run}'s optimizer did not step before pass {many[len(few)]}"
    return ""


def other_passes(frontier: Frontier, row: int) -> str:
    """Say how many backward passes the step of a model's input has, where the runs differ; or "".

    "" too where a run has no backward pass in the step, or the numbers differ in the step before as
    well (where that was not recorded: in the step after).

    Where one run leaves a pass out, passes of one number are given different data from there on.
    row: a row of A.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    if frontier.role[row] != Role.INPUT or alignment.merged or a.gaps or b.gaps:
        return ""
    row_b = int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
    places = [(table, at, _in_steps(table, at)) for table, at in ((a, row), (b, row_b))]
    own = [counts.get(int(table.step[at]), 0) for table, at, counts in places]
    if own[0] == own[1] or not all(own) or not _alike_elsewhere(places):
        return ""
    passes = "es" * (own[0] != 1)
    return f"step {int(a.step[row])} has {own[0]} backward pass{passes} in A, {own[1]} in B"


def _in_steps(table: Table, row: int) -> dict[int, int]:
    """Return, for each step, how many of its passes have gradients, on a row's rank and phase."""
    rank = table.tensors[table.tensor[row]].rank
    which = table.of_kind("grad", "pass_grad") & (table.rank == rank)
    which &= table.phase == table.phase[row]
    passes = np.unique(np.stack([table.step[which], table.pass_index[which]]), axis=1)
    steps, counts = np.unique(passes[0], return_counts=True)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def _alike_elsewhere(places: list[tuple[Table, int, dict[int, int]]]) -> bool:
    """Return whether both runs have equally many passes in the step before a row's step.

    Where the number of that step is unknown in a run, the step after counts; False where that is
    unknown too. Runs with unequal numbers split their work differently.
    places: for both runs the table, the row, and the number of passes of each step.
    """
    for away in (-1, 1):
        counts = [counts.get(int(table.step[at]) + away) for table, at, counts in places]
        if None not in counts:
            return counts[0] == counts[1]
    return False


def _passes(table: Table, row: int, name: str, kind: str) -> list[int]:
    """Return the passes of the row's step in which a tensor's gradient came back, before the row.

    Ascending; empty where a mode records only some passes. name, kind: the gradient's.
    """
    made = series(table, row, kind, name)
    made = made[(table.step[made] == table.step[row]) & (table.order[made] < table.order[row])]
    if not all(plain(table.tensors[number].mode) for number in table.tensor[made].tolist()):
        return []
    return sorted(set(table.pass_index[made].tolist()))


def _seen(table: Table, row: int) -> set[int]:
    """Return the passes of the row's step of which the run has any record before the row."""
    rank = table.tensors[table.tensor[row]].rank
    which = (table.rank == rank) & (table.order < table.order[row])
    for place in (table.step, table.phase, table.attempt):
        which &= place == place[row]
    return set(table.pass_index[which].tolist())
