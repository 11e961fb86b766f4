"""All forwards of a step in eval mode, where the other run makes only some of them so.

    model.eval();  for _ in range(3): x += step * gradient(model(x))       eval, eval, eval
    model.train(); loss(model(clean), model(x)).backward()                 train, train

A program may attack a model, act by it or choose samples by it in eval mode before it trains it.
Where it is left in eval mode, a step has as many forwards as before, all of them in eval mode. The
forwards of each tensor are paired in their order, the n-th with the n-th. Other records of a pass,
such as the gradients of parameters, go with the tensors of their pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from anchorlib.diagnosis.pairing.tables import Table

__all__ = ["as_whole_steps"]

Array = np.ndarray[Any, Any]
Place: TypeAlias = tuple[int, int, int]


def as_whole_steps(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    columns: Sequence[tuple[Array, ...]],
    modes: tuple[tuple[Array, Array], tuple[Array, Array]],
    alone: Array,
    evaluated: int,
) -> dict[int, Place]:
    """Return the places, as (phase, pass, call), of rows that one run made in eval mode.

    A place is that of the partner in the other run. Only steps are returned in which a tensor's
    forward still has no partner, and in which the other run made some of the tensor's forwards in
    training, this run none, and both made equally many.
    where: for A and for B, columns with the series and step of each row. columns: the phase, pass
    and call by which rows are paired so far. modes: which rows are of training, and which of an
    evaluation, each for A and for B. alone: which rows that the run made in eval mode have no
    partner so far, though the other run made their tensor in training in that step and this run,
    which trains in it, did not. evaluated: which run is in eval mode, 0 for A, 1 for B.
    """
    (trains, evals), other = modes, 1 - evaluated
    lone = alone & tables[evaluated].of_kind("value")
    places: dict[int, Place] = {}
    for step in np.unique(where[evaluated][1][lone]).tolist():
        mine, theirs = (
            _forwards(tables[n], where[n][0], np.flatnonzero(where[n][1] == step))
            for n in (evaluated, other)
        )
        partners: dict[int, int] = {}
        for series, rows in mine.items():
            others = theirs.get(series, [])
            some = trains[other][others].any() and not trains[evaluated][rows].any()
            if some and len(rows) == len(others):
                partners |= dict(zip(rows, others, strict=True))
        evaluations = np.flatnonzero((where[evaluated][1] == step) & evals[evaluated])
        places |= _places(tables[evaluated], evaluations, partners, columns[other])
    return places


def _places(
    table: Table, rows: Array, partners: Mapping[int, int], columns: tuple[Array, ...]
) -> dict[int, Place]:
    """Return the places of rows of a step, by those of the forwards that have partners.

    A row of a forward's tensor has the place of the forward's partner, any other row the phase and
    pass that most forwards of its pass have. Rows of a pass without such forwards have no place.
    rows: rows of `table` in eval mode. partners: row of a forward -> row in the other run.
    columns: the phase, pass and call of each row of the other run.
    """
    forwards: dict[tuple[str, int, int, int], Place] = {}
    usual: defaultdict[tuple[int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    for row, partner in partners.items():
        phase, pass_index, call = (int(column[partner]) for column in columns)
        name, rank, *own = _own_place(table, row)
        forwards[name, rank, own[0], own[1]] = phase, pass_index, call
        usual[rank, own[0]][phase, pass_index] += 1
    places: dict[int, Place] = {}
    for row in rows.tolist():
        name, rank, pass_index, call = _own_place(table, row)
        if (name, rank, pass_index, call) in forwards:
            places[row] = forwards[name, rank, pass_index, call]
        elif (rank, pass_index) in usual:
            places[row] = (*usual[rank, pass_index].most_common(1)[0][0], call)
    return places


def _own_place(table: Table, row: int) -> tuple[str, int, int, int]:
    """Return the name, rank, pass and call of a row."""
    tensor = table.tensors[table.tensor[row]]
    return tensor.name, tensor.rank, int(table.pass_index[row]), int(table.call[row])


def _forwards(table: Table, series: Array, rows: Array) -> dict[int, list[int]]:
    """Return the values among `rows`, in order of execution: series -> rows."""
    rows = rows[table.of_kind("value")[rows]]
    rows = rows[np.argsort(table.order[rows], kind="stable")]
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        found[int(series[row])].append(row)
    return found
