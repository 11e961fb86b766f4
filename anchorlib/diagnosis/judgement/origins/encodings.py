"""Constants in another encoding, and inputs that are handed over in another order.

    self.mask = keep                   scores.masked_fill(~mask, -inf)
    self.mask = ~keep                  scores.masked_fill(mask, -inf)
    self.std = std                     (x - mean) / std
    self.std = 1 / std                 (x - mean) * std
    model(x, mask)                     model(mask, x)

A constant acts only through what is computed from it, and so does an input. Where all that is
learned in a step is equal, a constant that differs as a whole counts as the same constant in
another encoding. One that differs in a few entries does not: later steps may read these alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.judgement.origins.first_step import FirstStep
from anchorlib.diagnosis.pairing import Table, buffers_of, model_of_input
from anchorlib.diagnosis.sizes import read
from anchorlib.errors import StoreError
from anchorlib.names import join

__all__ = ["encoded_otherwise", "exchanged_inputs"]

Array = np.ndarray[Any, Any]
WHOLE = 0.9
"""A constant is another one as a whole if at least this share of its elements differs. The encoding
may leave the other elements unchanged, as the diagonal of a transposed matrix."""
MOSTLY = 0.5
"""If one formula makes at least this share of the elements, the rest are exceptions to it."""
NEAR, EXACT = 16, 1e-12  # in eps, and of integers: how near two numbers of one formula are
MOST = 64  # constants whose values are read
MOST_ELEMENTS = 1 << 22


def encoded_otherwise(first: FirstStep) -> set[str]:
    """Return the constant buffers that differ in nearly all elements in the step, as `name@kind`.

    Masks with two other values count as well (see `_differs_as_a_whole`). A buffer is constant
    where its records of all steps, of several at least, have equal bits.
    """
    a, b = first.alignment.a, first.alignment.b
    renamed = {renaming.b: renaming.a for renaming in first.alignment.renamed}
    known = buffers_of(a) & {(renamed.get(name, name), rank) for name, rank in buffers_of(b)}
    names: set[str] = set()
    barred: set[str] = set()
    places = [
        place
        for place in first.here.tolist()
        if (tensor := a.tensors[a.tensor[first.rows[place]]]).kind == "value"
        and (tensor.name, tensor.rank) in known
        and tensor.name not in first.learnt
    ]
    for place in places[:MOST]:
        row, row_b = int(first.rows[place]), int(first.alignment.b_row[first.measures.pair[place]])
        text = join(*a.tensors[a.tensor[row]][:2])
        if text in names or text in barred:
            continue
        constant = _stays(a, row) and _stays(b, row_b)
        (names if constant and _differs_as_a_whole(a, b, row, row_b) else barred).add(text)
    return names - barred


def exchanged_inputs(first: FirstStep) -> set[str]:
    """Return inputs of models that B hands over as other arguments than A, as `name@kind`.

    In each call in which such inputs differ, B's inputs have together the same bits as A's inputs,
    in another order. Inputs of one element do not count.
    """
    a, b = first.alignment.a, first.alignment.b
    groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for at, row in enumerate(first.rows.tolist()):
        name, kind, _, rank = a.tensors[a.tensor[row]]
        model = model_of_input(name)
        if kind == "value" and model:
            places = (a.attempt, a.phase, a.step, a.pass_index, a.call)
            groups[(model, rank, *(int(place[row]) for place in places))].append(at)
    exchanged: set[str] = set()
    barred: set[str] = set()
    for group in groups.values():
        rows = first.rows[group]
        rows_b = first.alignment.b_row[first.measures.pair[group]]
        bits = [
            Counter(digest.tobytes() for digest in table.digest[own])
            for table, own in ((a, rows), (b, rows_b))
        ]
        single = int(a.figures["numel"][rows].min()) < 2
        names = {join(*a.tensors[number][:2]) for number in a.tensor[rows].tolist()}
        (exchanged if bits[0] == bits[1] and not single else barred).update(names)
    return exchanged - barred


def _stays(table: Table, row: int) -> bool:
    """Return whether a tensor has records of several steps, all with equal bits."""
    rows = np.flatnonzero(table.tensor == table.tensor[row])
    equal_bits = (table.digest[rows] == table.digest[row]).all(axis=1)
    return bool(equal_bits.all()) and len(np.unique(table.step[rows])) > 1


def _differs_as_a_whole(a: Table, b: Table, row: int, row_b: int) -> bool:
    """Return whether almost all elements of a constant differ, or it is a mask with other values.

    Elements that are zero in both runs do not count: zero is zero in all units. A mask has two
    values in each run, which stand at the same places. False where values are unknown, and where
    one formula makes most elements of B's constant from A's, but not all.
    """
    if a.figures["numel"][row] > MOST_ELEMENTS or not (a.kept[row] and b.kept[row_b]):
        return False
    try:
        mine, other = read(a, row).reshape(-1), read(b, row_b).reshape(-1)
    except StoreError:
        return False
    if len(mine) != len(other):
        return False
    if _is_a_mask(mine, other):
        return True
    counted = (mine != 0) | (other != 0)
    if not counted.any() or float((mine != other)[counted].mean()) < WHOLE:
        return False
    both = ((a, row), (b, row_b))
    eps = max(dtypes.dtype(table.dtypes[table.dtype[at]]).eps or 0.0 for table, at in both)
    return not _breaks_a_formula(mine[counted], other[counted], max(NEAR * eps, EXACT))


def _is_a_mask(mine: Array, other: Array) -> bool:
    """Return whether a constant has two values in each run, at the same places in both."""
    values = [np.unique(side, return_inverse=True) for side in (mine, other)]
    if any(len(of_run) != 2 for of_run, _ in values):
        return False
    marks = [inverse.reshape(-1).tolist() for _, inverse in values]
    return len(set(zip(*marks, strict=True))) == 2


def _breaks_a_formula(mine: Array, other: Array, near: float) -> bool:
    """Return whether one formula makes most elements of B's constant from A's, but not all.

    The formulas are a factor, a summand, a difference from a number, and a quotient of a number.
    The few other elements are wrong then, whatever the encoding is.
    mine, other: the elements in A and in B. near: the relative error up to which two numbers are
    equal.
    """
    if np.iscomplexobj(mine):  # their real and imaginary parts, side by side
        mine, other = (np.ascontiguousarray(one).view(one.real.dtype) for one in (mine, other))
    mine, other = mine.astype(np.float64), other.astype(np.float64)
    sizes = np.maximum(np.abs(mine), np.abs(other))
    with np.errstate(all="ignore"):  # division by zero, and infinities
        formulas = ((other / mine, 0.0), (other - mine, sizes), (other + mine, sizes))
        shares = [
            float((np.abs(made - middle) <= near * (np.abs(middle) + size)).mean())
            for made, size in (*formulas, (other * mine, 0.0))
            for middle in [np.median(made)]
        ]
    return MOSTLY <= max(shares) < 1
