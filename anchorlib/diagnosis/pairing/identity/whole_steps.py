"""Steps with forwards in eval mode and in training, of which one run makes more in eval mode.

    model.eval();  for _ in range(3): x += step * gradient(model(x))       eval, eval, eval
    model.train(); loss(model(clean), model(x)).backward()                 train, train

A program may attack a model, act by it or choose samples by it in eval mode before it trains it.
Where it is left in eval mode, or was in training before, a step has as many forwards as in the
other run, and more or fewer of them in eval mode. The forwards of each tensor are paired in their
order, the n-th with the n-th. Other records of a pass, such as the gradients of parameters, go with
the tensors of their pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from anchorlib.diagnosis.pairing.tables import Table, model_of_input

__all__ = ["as_whole_steps", "in_order_of_steps"]

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


def in_order_of_steps(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    columns: Sequence[tuple[Array, ...]],
    modes: tuple[tuple[Array, Array], tuple[Array, Array]],
    evaluated: int,
) -> dict[int, Place]:
    """Return the places of a run's rows in steps of which it makes more forwards in eval mode.

    These are steps in which both runs train a model, and give it as many inputs, of which both runs
    make the first ones in one mode, and this run makes more in eval mode than the other. In the
    first such step, the first input that the runs take in two modes has to be equal in bits, and so
    have those before it: it shows that they are one. {} where it is not.
    Arguments and result are those of `as_whole_steps`.
    """
    (trains, evals), other = modes, 1 - evaluated
    both = [trains[n] | evals[n] for n in (0, 1)]
    names = [tensor.name for tensor in tables[evaluated].tensors]
    places: dict[int, Place] = {}
    for step in _evaluated_more(tables, where, evals, evaluated):
        rows = [np.flatnonzero((where[n][1] == step) & both[n]) for n in (0, 1)]
        mine, theirs = (_forwards(tables[n], where[n][0], rows[n]) for n in (evaluated, other))
        partners: dict[int, int] = {}
        given: list[tuple[int, int]] = []
        for series, own in mine.items():
            others = theirs.get(series, [])
            name = names[tables[evaluated].tensor[own[0]]]
            if len(own) != len(others):
                continue
            partners |= dict(zip(own, others, strict=True))
            modes_of = evals[evaluated][own], evals[other][others]
            apart = np.flatnonzero(modes_of[0] != modes_of[1])
            trained = trains[evaluated][own].any() and trains[other][others].any()
            if model_of_input(name) and trained and len(apart) and modes_of[0][apart].all():
                given += list(zip(own, others, strict=True))[: apart[0] + 1]
        if not given:
            continue
        if not places and not _are_equal(tables, given, evaluated):
            return {}
        places |= _places(tables[evaluated], rows[evaluated], partners, columns[other])
    return places


def _evaluated_more(
    tables: tuple[Table, Table],
    where: Sequence[Sequence[Array]],
    evals: tuple[Array, Array],
    evaluated: int,
) -> list[int]:
    """Return the steps in which a run gives a model more inputs in eval mode than the other run."""
    counts: list[Counter[int]] = []
    for table, (_, steps), of_evaluation in zip(tables, where, evals, strict=True):
        given = table.where(lambda one: one.kind == "value" and bool(model_of_input(one.name)))
        found, times = np.unique(steps[given & of_evaluation], return_counts=True)
        counts.append(Counter(dict(zip(found.tolist(), times.tolist(), strict=True))))
    return sorted(counts[evaluated] - counts[1 - evaluated])


def _are_equal(tables: tuple[Table, Table], pairs: Sequence[tuple[int, int]], first: int) -> bool:
    """Return whether rows are equal in bits, pair by pair.

    pairs: a row of the run `first` (0 for A, 1 for B) and one of the other run each.
    """
    one, other = tables[first], tables[1 - first]
    return all((one.digest[row] == other.digest[partner]).all() for row, partner in pairs)


def _places(
    table: Table, rows: Array, partners: Mapping[int, int], columns: tuple[Array, ...]
) -> dict[int, Place]:
    """Return the places of rows of a step, by those of the forwards that have partners.

    A row of a forward's tensor has the place of the forward's partner, any other row the phase and
    pass that most forwards of its pass have. Rows of a pass without such forwards have no place.
    rows: rows of `table`. partners: row of a forward -> row in the other run.
    columns: the phase, pass and call of each row of the other run.
    """
    forwards: dict[tuple[str, tuple[int, int, int], int], Place] = {}
    usual: defaultdict[tuple[int, int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    for row, partner in partners.items():
        phase, pass_index, call = (int(column[partner]) for column in columns)
        name, own_pass, own_call = _own_place(table, row)
        forwards[name, own_pass, own_call] = phase, pass_index, call
        usual[own_pass][phase, pass_index] += 1
    places: dict[int, Place] = {}
    for row in rows.tolist():
        name, own_pass, call = _own_place(table, row)
        if (name, own_pass, call) in forwards:
            places[row] = forwards[name, own_pass, call]
        elif own_pass in usual:
            places[row] = (*usual[own_pass].most_common(1)[0][0], call)
    return places


def _own_place(table: Table, row: int) -> tuple[str, tuple[int, int, int], int]:
    """Return the name of a row, its rank, phase and pass, and its call."""
    tensor = table.tensors[table.tensor[row]]
    of = tensor.rank, int(table.phase[row]), int(table.pass_index[row])
    return tensor.name, of, int(table.call[row])


def _forwards(table: Table, series: Array, rows: Array) -> dict[int, list[int]]:
    """Return the values among `rows`, in order of execution: series -> rows."""
    rows = rows[table.of_kind("value")[rows]]
    rows = rows[np.argsort(table.order[rows], kind="stable")]
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        found[int(series[row])].append(row)
    return found
