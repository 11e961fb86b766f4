"""Forwards that one run made in training and the other in eval mode: a model left in eval mode.

Records of a watched root module whose `training` is False have the phase "eval". Where one run has
a tensor at a step in that phase alone, and the other run has the tensor in training alone, the two
are records of one forward. The first run must train in that step too, in other records: a step of
mere evaluation is paired with no training. A run may also be in eval mode in one pass of a step
alone: then the two are records of one forward if they belong to the same pass of training. Where a
model is called several times in a step, in training, without gradients and in eval mode, some
forwards of a tensor may still lack a partner. These are paired in turn, the n-th with the n-th, if
one run made all of them in eval mode, the other run made none of them in eval mode, and both runs
have equally many. So are all forwards of a tensor in a step, where one run makes them all in eval
mode and the other run only some, as where it attacks a model before it trains it; and where one run
makes more of them in eval mode than the other, if equal inputs show that they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.identity.keys import packed
from anchorlib.diagnosis.pairing.identity.whole_steps import as_whole_steps, in_order_of_steps
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.scope import EVAL, TRAIN

__all__ = ["Modes", "modes"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Modes:
    """The phases, passes and calls by which rows of two runs are paired.

    phases: the phase of each row of A, and of B: "train" for a forward that the other run made in
        training.
    passes: the pass of each row of A, and of B; for such a forward, the pass of training it is in.
    calls: the call of each row of A, and of B; for such a forward, its call in that pass.
    since: for A and for B, the step, in that run's own count, from which the run was in eval mode
        while the other run trained; None where it never was.
    """

    phases: tuple[Array, Array]
    passes: tuple[Array, Array]
    calls: tuple[Array, Array]
    since: tuple[int | None, int | None] = (None, None)


def modes(
    tables: tuple[Table, Table],
    series: tuple[Array, Array],
    phases: tuple[Array, Array],
    offset: int,
) -> Modes:
    """Return the phases and passes by which rows are paired, also those of forwards in two modes.

    A forward that ran in training in one run and in eval mode in the other gets the phase of
    training in both. Phases are given as the numbers in `phases`.
    series: for each table, a number for each tensor; phases: for each table, a number for each
    phase. Equal numbers in the two tables stand for equal things.
    offset: what to add to A's steps to get B's.
    """
    rows = phases[0][tables[0].phase], phases[1][tables[1].phase]
    passes = tables[0].pass_index, tables[1].pass_index
    calls = tables[0].call, tables[1].call
    numbered = zip((*tables[0].phases, *tables[1].phases), np.concatenate(phases), strict=True)
    numbers = {name: int(number) for name, number in numbered}
    if EVAL not in numbers or TRAIN not in numbers:
        return Modes(rows, passes, calls)
    steps = tables[0].step + offset, tables[1].step
    where = [[series[n][table.tensor], steps[n]] for n, table in enumerate(tables)]
    trains = rows[0] == numbers[TRAIN], rows[1] == numbers[TRAIN]
    evals = rows[0] == numbers[EVAL], rows[1] == numbers[EVAL]
    unmoved = [(rows[n], passes[n], calls[n]) for n in (0, 1)]
    ordered = _by_order(tables, where, unmoved, (trains, evals), numbers[TRAIN])
    return ordered or _by_mode(tables, where, unmoved, (trains, evals), numbers[TRAIN])


def _by_mode(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    unmoved: Sequence[tuple[Array, ...]],
    both: tuple[tuple[Array, Array], tuple[Array, Array]],
    train: int,
) -> Modes:
    """Return the phases and passes by which forwards of one run alone in eval mode are paired.

    where, unmoved: for A and for B, columns with the series and step, and the phase, pass and call,
    of each row. both: which rows are of training, and which of an evaluation. train: the number of
    the phase of training.
    """
    trains, evals = both
    whole = _moved(tables, _packed(where), trains, evals)
    own = [_pass_of_training(table, trains[n], evals[n]) for n, table in enumerate(tables)]
    by_pass = _packed([[*where[n], own[n]] for n in (0, 1)])
    some = _moved(tables, by_pass, trains, evals)
    moved = [whole[n] | some[n] for n in (0, 1)]
    columns = [
        (
            np.where(moved[n], train, unmoved[n][0]),
            np.where(some[n] & ~whole[n], own[n], unmoved[n][1]),
            unmoved[n][2].copy(),
        )
        for n in (0, 1)
    ]
    for run, other in ((0, 1), (1, 0)):
        turns = _in_turn(tables, where, columns, trains, run)
        for row, partner in turns.items():
            for mine, theirs in zip(columns[run], columns[other], strict=True):
                mine[row] = theirs[partner]
        moved[run][list(turns)] = True
        alone = _in_eval_mode_alone(where, columns, (trains, evals), run)
        alone &= _trains(tables[run], trains[run])
        in_order = as_whole_steps(tables, where, columns, (trains, evals), alone, run)
        for row, place in in_order.items():
            for column, number in zip(columns[run], place, strict=True):
                column[row] = number
            moved[run][row] = place[0] == train
    return Modes(
        (columns[0][0], columns[1][0]),
        (columns[0][1], columns[1][1]),
        (columns[0][2], columns[1][2]),
        (_first(tables[0], moved[0]), _first(tables[1], moved[1])),
    )


def _by_order(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    columns: Sequence[tuple[Array, ...]],
    both: tuple[tuple[Array, Array], tuple[Array, Array]],
    train: int,
) -> Modes | None:
    """Return the phases and passes by which rows are paired where one run alone makes more forwards
    in eval mode; None where neither does.

    Arguments are those of `_by_mode`.
    """
    for run in (0, 1):
        places = in_order_of_steps(tables, where, columns, both, run)
        if not places:
            continue
        moved = [tuple(column.copy() for column in of_run) for of_run in columns]
        trained = np.zeros(len(tables[run]), bool)
        for row, place in places.items():
            trained[row] = place[0] == train != columns[run][0][row]
            for column, number in zip(moved[run], place, strict=True):
                column[row] = number
        since = _first(tables[run], trained)
        phases, passes, calls = ((moved[0][at], moved[1][at]) for at in range(3))
        return Modes(phases, passes, calls, (since, None) if run == 0 else (None, since))
    return None


def _in_turn(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    columns: Sequence[tuple[Array, ...]],
    trains: tuple[Array, Array],
    evaluated: int,
) -> dict[int, int]:
    """Pair forwards of one run in eval mode with the other run's forwards, the n-th with the n-th.

    Only forwards that have no partner are paired. Returns the rows of the run in eval mode -> rows
    of the other run.
    where, columns: for A and for B, columns with the series and step, and the phase, pass and call,
    of each row.
    trains: for A and for B, whether each row was made in training.
    evaluated: which run is in eval mode, 0 for A, 1 for B.
    """
    places = _packed([[*where[n], *columns[n]] for n in (0, 1)])
    groups = _packed([[*where[n], tables[n].call] for n in (0, 1)])
    left: list[Array] = []
    for n in (0, 1):
        table = tables[n]
        evals = np.array([phase == EVAL for phase in table.phases], bool)[table.phase]
        values = table.of_kind("value")
        rows = np.flatnonzero(
            values & ~np.isin(places[n], places[1 - n]) & (evals == (n == evaluated))
        )
        left.append(rows[np.lexsort((table.order[rows], groups[n][rows]))])
    mine, theirs = left[evaluated], left[1 - evaluated]
    mine = mine[_trains(tables[evaluated], trains[evaluated])[mine]]
    trained = np.unique(groups[1 - evaluated][theirs[trains[1 - evaluated][theirs]]])
    if not len(mine) or not len(trained):
        return {}
    counts = [
        np.unique(groups[n][rows], return_counts=True)
        for n, rows in ((evaluated, mine), (1 - evaluated, theirs))
    ]
    as_many = dict(zip(*(each.tolist() for each in counts[1]), strict=True))
    pairs = zip(*(each.tolist() for each in counts[0]), strict=True)
    equally_many = [group for group, count in pairs if as_many.get(group) == count]
    in_turn = np.intersect1d(np.array(equally_many, np.int64), trained)
    mine = mine[np.isin(groups[evaluated][mine], in_turn)]
    theirs = theirs[np.isin(groups[1 - evaluated][theirs], in_turn)]
    return dict(zip(mine.tolist(), theirs.tolist(), strict=True))


def _in_eval_mode_alone(
    where: Sequence[Sequence[Array]],
    columns: Sequence[tuple[Array, ...]],
    modes: tuple[tuple[Array, Array], tuple[Array, Array]],
    run: int,
) -> Array:
    """Return which rows of a run have no partner, as it made their tensor in eval mode alone.

    The other run made the tensor in training in that step, and this run did not. So an evaluation
    beside the training of both runs does not count.
    where, columns: as in `_in_turn`. modes: which rows are of training, and which of an evaluation.
    run: 0 for A, 1 for B.
    """
    (trains, evals), other = modes, 1 - run
    places = _packed([[*where[n], *columns[n]] for n in (0, 1)])
    tensors = _packed(where)
    alone: Array = evals[run] & ~np.isin(places[run], places[other])
    alone &= ~np.isin(tensors[run], tensors[run][trains[run]])
    return alone & np.isin(tensors[run], tensors[other][trains[other]])


def _packed(where: Sequence[Sequence[Array]]) -> tuple[Array, Array]:
    """Return one number for each row of A, and of B; equal where all columns of two rows are.

    where: the columns of A, and those of B.
    """
    places = packed([np.concatenate(both) for both in zip(*where, strict=True)])
    count = len(where[0][0])
    return places[:count], places[count:]


def _moved(
    tables: tuple[Table, Table],
    places: tuple[Array, Array],
    trains: tuple[Array, Array],
    evals: tuple[Array, Array],
) -> list[Array]:
    """Return masks of A's and B's rows made in eval mode that the other run made in training.

    Rows count only in steps in which their own run trains too.
    places: a number for each row, equal for rows that may be paired. trains, evals: boolean masks:
        whether each row was made in training, or in eval mode.
    """
    moved = []
    for run, other in ((0, 1), (1, 0)):
        move = evals[run] & np.isin(places[run], places[other][trains[other]])
        move &= ~np.isin(places[run], places[run][trains[run]])
        move &= ~np.isin(places[run], places[other][evals[other]])
        moved.append(move & _trains(tables[run], trains[run]))
    return moved


def _pass_of_training(table: Table, trains: Array, evals: Array) -> Array:
    """Return the pass of each row; for a row in eval mode, the pass of training it belongs to.

    It belongs to the pass of the next `value` or `pass_grad` record in training of the row's rank
    and step, such as the loss computed from the row's tensor. Where none follows, the last such
    record before the row decides; where rank and step have none at all, the row keeps its own pass.
    trains, evals: boolean masks: whether each row was made in training, or in eval mode.
    """
    passes = table.pass_index.copy()
    rank = table.rank
    marks = np.flatnonzero(trains & table.of_kind("value", "pass_grad"))
    if not len(marks) or not evals.any():
        return passes
    for step in np.unique(table.step[evals]).tolist():
        for number in np.unique(rank[evals & (table.step == step)]).tolist():
            near = marks[(table.step[marks] == step) & (rank[marks] == number)]
            near = near[np.argsort(table.order[near], kind="stable")]
            rows = np.flatnonzero(evals & (table.step == step) & (rank == number))
            if len(near):
                at = np.searchsorted(table.order[near], table.order[rows])
                passes[rows] = table.pass_index[near[np.minimum(at, len(near) - 1)]]
    return passes


def _trains(table: Table, in_training: Array) -> Array:
    """Return a mask of the rows in steps that train.

    A step trains if it has a row in training, or a row of a kind other than `value`.

    in_training: a boolean mask of the rows whose phase is training.
    """
    trains = in_training | ~table.of_kind("value")
    in_training_step: Array = np.isin(table.step, table.step[trains])
    return in_training_step


def _first(table: Table, rows: Array) -> int | None:
    return int(table.step[rows].min()) if rows.any() else None
