"""Forwards that one run made in training and the other in eval mode: a model left in eval mode.

Records of a watched root whose `training` is False have the phase "eval". Where one run has a
tensor at a step in that phase alone, and the other run has it in training alone, the two are
records of one forward. The first run must train in that step too, in other records: a step of mere
evaluation is no such thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.identity.keys import packed
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.scope import EVAL, TRAIN

__all__ = ["Modes", "modes"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Modes:
    """The phases by which rows of two runs are paired.

    phases: of each row of A, and of B: "train" for a forward that the other run made in training.
    since: the step, in the run's own count, from which A, and B, ran in eval mode while the other
        trained; None where it never did.
    """

    phases: tuple[Array, Array]
    since: tuple[int | None, int | None] = (None, None)


def modes(
    tables: tuple[Table, Table],
    series: tuple[Array, Array],
    phases: tuple[Array, Array],
    offset: int,
) -> Modes:
    """The phases of two tables' rows, with one phase for a forward that ran in two modes.

    series, phases: numbers of tensors and phases that both tables share. offset: what to add to A's
    steps to get B's.
    """
    rows = phases[0][tables[0].phase], phases[1][tables[1].phase]
    told = zip((*tables[0].phases, *tables[1].phases), np.concatenate(phases), strict=True)
    numbers = {name: int(number) for name, number in told}
    if EVAL not in numbers or TRAIN not in numbers:
        return Modes(rows)
    where = [
        [series[n][table.tensor], table.step + (0 if n else offset)]
        for n, table in enumerate(tables)
    ]
    places = packed([np.concatenate(both) for both in zip(*where, strict=True)])
    split = places[: len(tables[0])], places[len(tables[0]) :]
    told_in = {name: [split[n][rows[n] == numbers[name]] for n in (0, 1)] for name in (TRAIN, EVAL)}
    moved = []
    for one, other in ((0, 1), (1, 0)):
        move = (rows[one] == numbers[EVAL]) & np.isin(split[one], told_in[TRAIN][other])
        move &= ~np.isin(split[one], told_in[TRAIN][one])
        move &= ~np.isin(split[one], told_in[EVAL][other])
        moved.append(move & _trains(tables[one], rows[one] == numbers[TRAIN]))
    return Modes(
        (
            np.where(moved[0], numbers[TRAIN], rows[0]),
            np.where(moved[1], numbers[TRAIN], rows[1]),
        ),
        (_first(tables[0], moved[0]), _first(tables[1], moved[1])),
    )


def _trains(table: Table, in_training: Array) -> Array:
    """Whether the step of each row is one of training: with gradients, or records of that phase."""
    values = np.array([one.kind == "value" for one in table.tensors], bool)[table.tensor]
    found: Array = np.isin(table.step, table.step[in_training | ~values])
    return found


def _first(table: Table, rows: Array) -> int | None:
    return int(table.step[rows].min()) if rows.any() else None
