"""Gradients that differ where a program adds the weight decay that the other run's optimizer adds.

    torch.optim.SGD(parameters, weight_decay=0.1)          parameter.grad.add_(parameter, alpha=0.1)

An optimizer with a weight decay w adds w times the parameter to the gradient that it reads. Where
one run sets w in its optimizer, and the gradients of the other run contain w times their parameters
already, both optimizers work with equal gradients. AdamW adds its weight decay elsewhere, so
whether the optimizers do so shows only in their updates. So gradients count only where the update
of their parameter is recorded; that update is judged by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.series import parameter_before, values
from anchorlib.diagnosis.pairing import Alignment, Table, parameters_of
from anchorlib.diagnosis.sizes import Measures
from anchorlib.errors import StoreError

__all__ = ["decayed_elsewhere"]

Array = np.ndarray[Any, Any]
Site = tuple[str, int, int, str]
EPS32 = 2.0**-23
ROUNDINGS = 32.0
"""By how many eps of float32 the gradients may differ, once the multiple is taken off."""
SETTING = "optimizer"
MOST_ELEMENTS = 1 << 24  # of gradients that are read


def decayed_elsewhere(alignment: Alignment, measures: Measures) -> Array:
    """Return for each measured pair whether it holds gradients that differ by weight decay alone.

    Values are compared in the first step that differs alone. Where a tensor's gradients differ like
    this there, its gradients in later steps are True, too.
    """
    a, rows = alignment.a, alignment.a_row[measures.pair]
    none = np.zeros(len(rows), bool)
    apart = _settings_apart(alignment)
    if not len(rows) or not apart:
        return none
    learnt = parameters_of(a)
    gradients = a.of_kind("grad", "pass_grad")
    which = gradients[rows] & a.where(lambda one: one.name in learnt and one.rank in apart)[rows]
    moved = _moved(alignment)
    which &= np.array([_site(a, row)[:3] in moved for row in rows.tolist()], bool)
    # A bias that begins as zero decays from the second step on, so that its gradients are equal.
    first = a.step[alignment.a_row] == a.step[rows].min()
    pairs = np.flatnonzero(first & np.isin(a.tensor[alignment.a_row], a.tensor[rows[which]]))
    if a.figures["numel"][alignment.a_row[pairs]].sum() > MOST_ELEMENTS:
        return none
    codes = a.tensor[alignment.a_row[pairs]].tolist()
    tensors = {
        code
        for code, pair in zip(codes, pairs.tolist(), strict=True)
        if _is_decay(alignment, pair, apart[a.tensors[code].rank])
    }
    excused: Array = which & np.isin(a.tensor[rows], list(tensors))
    return excused


def _settings_apart(alignment: Alignment) -> Mapping[int, set[float]]:
    """Return rank -> the differences of weight decay, A's minus B's, of its parameter groups.

    Differences of 0 are left out, and so are ranks without any other difference.
    """
    apart: dict[int, set[float]] = {}
    for rank in alignment.a.header.keys() & alignment.b.header.keys():
        sides = alignment.a.header[rank], alignment.b.header[rank]
        for name in sides[0].keys() & sides[1].keys():
            if not (name.startswith(SETTING) and name.endswith(".weight_decay")):
                continue
            groups = [_numbers(side[name]) for side in sides]
            length = max(map(len, groups))
            full = [group * length if len(group) == 1 else group for group in groups]
            if all(len(group) == length for group in full):
                differing = {one - other for one, other in zip(*full, strict=True)} - {0.0}
                apart[rank] = apart.get(rank, set()) | differing
    return {rank: numbers for rank, numbers in apart.items() if numbers}


def _numbers(setting: object) -> list[float]:
    """Return a setting's numbers as a list: a list has one for each group, a number holds for all.

    [] if the setting holds anything else than numbers.
    """
    listed = setting if isinstance(setting, list | tuple) else [setting]
    known = [float(one) for one in listed if isinstance(one, int | float)]
    return known if len(known) == len(listed) else []


def _moved(alignment: Alignment) -> set[tuple[str, int, int]]:
    """Return (name, rank, step) of each parameter whose update both runs recorded in the step."""
    a = alignment.a
    rows = alignment.a_row[a.of_kind("updated", "delta")[alignment.a_row]]
    return {_site(a, row)[:3] for row in rows.tolist()}


def _site(table: Table, row: int) -> Site:
    name, kind, _, rank = table.tensors[table.tensor[row]]
    return name, rank, int(table.step[row]), kind


def _is_decay(alignment: Alignment, pair: int, apart: set[float]) -> bool:
    """Return whether B's gradient is A's plus a multiple of the parameter, but for rounding.

    apart: the multiples that are tried. False where values are not known or cannot be read.
    """
    row, row_b = int(alignment.a_row[pair]), int(alignment.b_row[pair])
    try:
        a, b = values(alignment.a, row), values(alignment.b, row_b)
        parameter = parameter_before(alignment.a, row)
    except StoreError:
        return False
    if a is None or b is None or parameter is None or not len(a) == len(b) == len(parameter):
        return False
    size = float(np.linalg.norm(a)) + float(np.linalg.norm(b))
    return any(
        np.linalg.norm(b - a - times * parameter) <= ROUNDINGS * EPS32 * size for times in apart
    )
