"""How often each run's optimizer moved a parameter, and whether other code moved it as well.

    in step 8 its optimizer stepped once in A, 2 times in B
    its optimizer did not step in B
    B alone writes it after the optimizer's step 7, outside of that step

The records of an optimizer's step lie together: the gradients that it read, then what it made of
them. So they also tell which parameters one step of an optimizer updates.

That the updates of one step are judged together is decided in `origins.judged_together`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import EQUAL, UNMATCHED, Frontier, Role
from anchorlib.diagnosis.judgement.series import series
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.diagnosis.sizes import Measures
from anchorlib.names import escape

__all__ = [
    "did_not_step",
    "has_lone_updates",
    "parameters_of",
    "stepped_more",
    "updated_together",
    "written_by_one_run",
    "written_outside",
]

Array = np.ndarray[Any, Any]
Side = tuple[Table, int, str]
UPDATES = ("updated", "delta", "grad")
"""Kinds that an optimizer's step records, of which the first that both runs have is counted."""
EVERY_STEP = {"all", "summary"}
"""Modes that leave no step of an optimizer without a record."""
BEYOND = 64.0
"""Eps that a value has to be off: a parameter is written by few operations, which round less."""
LARGER = 64.0
"""How many times as much as its update a value has to be off."""
WRITTEN = 64  # parameters that are looked at
LOOKED_AT = 3  # how many unrecorded parameters of a value are looked at


def has_lone_updates(alignment: Alignment) -> bool:
    """Return whether a run has an `updated`, `delta` or `grad` record that the other run lacks."""
    sides = ((alignment.a, alignment.only_a), (alignment.b, alignment.only_b))
    return any(
        table.tensors[number].kind in UPDATES
        for table, only in sides
        for number in np.unique(table.tensor[only]).tolist()
    )


def stepped_more(frontier: Frontier, row: int, names: Mapping[str, str]) -> str:
    """Return a clause if one run updated a parameter of a value more often shortly before; else "".

    Counted are the updates before the row, in the row's own step and in the step before it. The
    parameter is the row's own, or one from which the value was computed: one whose values have no
    record (the first LOOKED_AT of them), or one whose record has no partner in B. Also "" for
    other kinds than `value`, where a run lost records, and where passes or ranks were merged.
    row: a row of A. names: A's names -> B's, where they differ.
    """
    alignment = frontier.alignment
    a = alignment.a
    own = a.tensors[a.tensor[row]]
    if own.kind != "value" or a.gaps or alignment.b.gaps or alignment.merged:
        return ""
    row_b = _partner(alignment, row)
    for name in _moved_before(frontier, row):
        sides = ((a, row, name), (alignment.b, row_b, names.get(name, name)))
        if said := _more(sides, "" if name == own.name else escape(name)):
            return said
    return ""


def _moved_before(frontier: Frontier, row: int) -> list[str]:
    """Return the names (in A) of the parameters whose updates may explain the value in a row of A.

    If the row is a parameter, that is its own name. For other values these are the parameters from
    which the value was computed and whose values have no record (the first LOOKED_AT of these), or
    a record without partner in B.
    """
    a = frontier.alignment.a
    if frontier.role[row] == Role.PARAMETER:
        return [a.tensors[a.tensor[row]].name]
    parameters = list(frontier.ancestry(row).unrecorded)[:LOOKED_AT]
    lone = (one for one in frontier.parents(row) if frontier.status[one] == UNMATCHED)
    return parameters + [
        a.tensors[a.tensor[one]].name for one in lone if frontier.role[one] == Role.PARAMETER
    ]


def _more(sides: tuple[Side, Side], name: str) -> str:
    """Say whether one run updated a parameter more often in a row's step or the step before; or "".

    sides: for each run the table, the row, and the run's name for the parameter. name: what the
    clause calls the parameter; "" where the row is a record of the parameter itself.
    """
    kind = next((kind for kind in UPDATES if all(_rows(*side, kind) for side in sides)), None)
    if kind is None:
        return ""
    steps = [int(table.step[row]) for table, row, _ in sides]
    whose = f"the optimizer of {name}" if name else "its optimizer"
    for back in (1, 0):
        updates, passes = (
            [_rows(*side, one).get(at - back, []) for side, at in zip(sides, steps, strict=True)]
            for one in (kind, "pass_grad")
        )
        few, many = sorted((0, 1), key=lambda run: len(updates[run]))
        if len(updates[few]) == len(updates[many]):
            continue
        if updates[few]:
            together = {updated_together(sides[many][0], at) for at in updates[many]}
            what = f"{whose} stepped" if len(together) == 1 else f"{name or 'it'} is updated"
            times = [_times(len(rows)) for rows in updates]
            return f"in step {steps[0] - back} {what} {times[0]} in A, {times[1]} in B"
        if name and len(passes[few]) >= len(passes[many]):
            return f"in step {steps[0] - back} {whose} did not step in {'AB'[few]}"
    return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _rows(table: Table, row: int, name: str, kind: str) -> dict[int, list[int]]:
    """Return the records of one parameter and kind that come before a row: step → their rows.

    The records are those of the row's rank and attempt, of all phases. {} where a mode (such as
    EveryN) recorded only some of the steps. name: that of the parameter.
    """
    made = series(table, row, kind, name, every_phase=True)
    if {table.tensors[number].mode for number in np.unique(table.tensor[made])} - EVERY_STEP:
        return {}
    by_step: dict[int, list[int]] = {}
    for one in made[table.order[made] < table.order[row]].tolist():
        by_step.setdefault(int(table.step[one]), []).append(one)
    return by_step


def parameters_of(table: Table, rank: int) -> set[str]:
    """Return the names of a rank's parameters.

    They are known by the stored edges, and by kinds of records that only parameters have.
    """
    stated = {
        parent.name
        for edges in table.edges.get(rank, ())
        for parent in edges.parents
        if parent.call is None
    }
    return stated | {
        tensor.name
        for tensor in table.tensors
        if tensor.rank == rank and tensor.kind in ("pass_grad", "updated", "delta")
    }


def updated_together(table: Table, row: int) -> frozenset[str]:
    """Return the names of all parameters that were updated by the optimizer step that made a row.

    row: a record that an optimizer reads or writes, such as `updated`; the row's own parameter is
    among the names. The names are found in records of the row's kind that lie beside the row.

    Where only gradients were recorded, and two optimizers step one right after the other, the
    parameters of both are returned.
    """
    own = table.tensors[table.tensor[row]]
    rows = np.flatnonzero((table.rank == own.rank) & (table.step == table.step[row]))
    rows = rows[table.attempt[rows] == table.attempt[row]]
    rows = rows[np.argsort(table.order[rows], kind="stable")]
    tensors = [table.tensors[number] for number in table.tensor[rows].tolist()]
    at = int(np.flatnonzero(rows == row)[0])
    names, parameters = {own.name}, parameters_of(table, own.rank)
    for places in (range(at - 1, -1, -1), range(at + 1, len(rows))):
        for place in places:
            name, kind = tensors[place][:2]
            if kind == own.kind and name in parameters and name not in names:
                names.add(name)
            elif kind in ("value", "pass_grad", own.kind) or "grad" in (kind, own.kind):
                break
    return frozenset(names)


def did_not_step(frontier: Frontier, row: int, before: int, still: int) -> list[str]:
    """Return a clause if the run that left a parameter unchanged left out an update; else [].

    The other run has an update between the rows `before` and `row`. The run that left the parameter
    unchanged has none there, though it has as many backward passes. [] where it has fewer passes:
    then it is in another part of the training.
    row: A's row of the parameter's value, which one run alone changed since `before`.
    before: A's previous row of the parameter.
    still: the run that left the parameter unchanged, 0 for A, 1 for B.
    """
    alignment = frontier.alignment
    sides = [
        (alignment.a, before, row),
        (alignment.b, _partner(alignment, before), _partner(alignment, row)),
    ]
    updates, passes = (
        [len(_between(table, first, last, kind)) for table, first, last in sides]
        for kind in ("updated", "pass_grad")
    )
    if updates[still] or not updates[1 - still] or passes[still] < passes[1 - still]:
        return []
    return [f"its optimizer did not step in {'AB'[still]}"]


def _between(table: Table, first: int, last: int, kind: str) -> Array:
    """Return the rows of one kind that lie between two rows of a tensor, of the same tensor.

    first, last: these two rows; both are left out.
    """
    made = series(table, last, kind, every_phase=True)
    between: Array = made[
        (table.order[made] > table.order[first]) & (table.order[made] < table.order[last])
    ]
    return between


def written_outside(frontier: Frontier, row: int) -> str:
    """Say which run wrote a parameter after the optimizer's step, outside of that step; else "".

    The last record of the parameter is the optimizer's update. A run has written the parameter
    since where its value is not that update. "" where both runs have written it and the update
    differs already.
    row: a value of a parameter in A. "" too where a run lost records or left out steps.
    """
    a = frontier.alignment.a
    last, kept = _last(a, row), _kept_updates(frontier, row)
    if last is None or kept is None or all(kept):
        return ""
    step = f"after the optimizer's step {int(a.step[last])}, outside of that step"
    if any(kept):
        return f"{'AB'[kept.index(False)]} alone writes it {step}"
    return f"both write it {step}, B otherwise" if frontier.status[last] == EQUAL else ""


def _kept_updates(frontier: Frontier, row: int) -> tuple[bool, bool] | None:
    """Return for A and for B whether a parameter still has the bits of its optimizer's last update.

    None where the last record before is no update of the step before, or is not the same in both
    runs, and where a run lost records. row: a value of a parameter in A.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    if frontier.role[row] != Role.PARAMETER or a.gaps or alignment.b.gaps:
        return None
    row_b = _partner(alignment, row)
    last, last_b = _last(a, row), _last(alignment.b, row_b)
    if last is None or last_b is None or _partner(alignment, last) != last_b:
        return None
    # Between the two, updates may be without a record.
    if a.tensors[a.tensor[last]].kind != "updated" or a.step[row] - a.step[last] > 1:
        return None
    equal_a = bool((a.digest[last] == a.digest[row]).all())
    return equal_a, bool((alignment.b.digest[last_b] == alignment.b.digest[row_b]).all())


def written_by_one_run(frontier: Frontier, measures: Measures) -> int | None:
    """Return A's row of the first parameter that one run alone wrote outside of optimizers' steps.

    The parameter's value has to differ LARGER times as much as the update that the optimizer's step
    left, and more than rounding does: the other run keeps that update, or makes it within its step.
    None without such a parameter. Only values of the step behind the first one that differs count.
    """
    alignment, a = frontier.alignment, frontier.alignment.a
    rows = alignment.a_row[measures.pair]
    if not len(rows):
        return None
    step = int(a.step[rows].min()) + 1
    errors = measures["error_eps"]
    value = (frontier.role[rows] == Role.PARAMETER) & (a.step[rows] == step)
    value &= frontier.explained[rows] & (errors > BEYOND)
    which = np.flatnonzero(value)
    for at in which[np.argsort(a.order[rows[which]], kind="stable")][:WRITTEN].tolist():
        row = int(rows[at])
        kept = _kept_updates(frontier, row)
        if kept is None or kept[0] == kept[1]:
            continue
        before = np.flatnonzero(rows == _last(a, row))  # nothing where the update is equal
        if errors[at] > LARGER * max([1.0, *errors[before].tolist()]):
            return row
    return None


def _last(table: Table, row: int) -> int | None:
    """Return the row of a parameter's last update or other value before a row; None without one.

    Each phase records parameters as it finds them: `value` records with the same bits as the row
    are passed over. None, too, where a mode records only some of the steps.
    row: a `value` of the parameter.
    """
    rows = np.concatenate(
        [series(table, row, kind, every_phase=True) for kind in ("value", "updated")]
    )
    if {table.tensors[number].mode for number in np.unique(table.tensor[rows])} - EVERY_STEP:
        return None
    rows = rows[table.order[rows] < table.order[row]]
    for one in rows[np.argsort(-table.order[rows], kind="stable")].tolist():
        if table.tensors[table.tensor[one]].kind == "updated":
            return int(one)
        if (table.digest[one] != table.digest[row]).any():
            return int(one)
    return None


def _partner(alignment: Alignment, row: int) -> int:
    return int(alignment.b_row[np.searchsorted(alignment.a_row, row)])
