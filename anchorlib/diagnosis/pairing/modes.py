"""Forwards that one run made in another phase: a model that was left in eval mode.

A watched root whose `training` is False carries the phase "eval". Where a run has a tensor at a
step in that phase alone, and the other has it in training alone, the two are of one forward: if
there was training at that step at all, for an evaluation beside the training is no such thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.keys import packed
from anchorlib.diagnosis.pairing.table import Table
from anchorlib.scope import EVAL, TRAIN

__all__ = ["Modes", "modes"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Modes:
    """phases: of each row of A and of B, the phase as the other run calls it.

    since: from which step on A, and B, trained in eval mode where the other did not; as that run
        counts, None where it never did.
    """

    phases: tuple[Array, Array]
    since: tuple[int | None, int | None] = (None, None)


def modes(
    tables: tuple[Table, Table],
    series: tuple[Array, Array],
    phases: tuple[Array, Array],
    offset: int,
) -> Modes:
    """The phases of two tables' rows, those of one forward in two modes made the same.

    series, phases: numbers that both share of their tensors and phases. offset: A's step 0 for B.
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
