"""The target of a loss, computed from the loss's input and the gradient of that input.

Autograd does not follow targets, and few programs record them. But the gradient g of the logits x
is (softmax(x) − y) / n for a cross entropy, and (σ(x) − y) / n for a binary one. Where x and g were
recorded, all elements of softmax(x) over g lie on one line, whose slope is n and whose level is y.
Where they lie on no line, the loss is another one, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from anchorlib.diagnosis.causes import Frontier, Link
from anchorlib.diagnosis.judgement.series import series, values
from anchorlib.diagnosis.pairing import Table
from anchorlib.errors import StoreError

__all__ = ["gradient_of", "targets"]

Array = np.ndarray[Any, Any]
EXACT = 1e-3  # share of the spread of probabilities by which elements may be off their line
CLEAR = 1e-3  # difference from which two targets are two
FEW = 8  # elements: a line through fewer proves nothing
IGNORED, UNKNOWN = -1, -2  # labels of rows without a gradient
CERTAIN = 1 - 1e-5  # probability of a label from which no gradient is left
MOST_ELEMENTS = 1 << 22
TRIES = 3  # choices of labels that are tried: those of the smallest gradient first


class _Target(NamedTuple):
    """A target as a gradient tells it.

    labels: the label of each row, or IGNORED or UNKNOWN; None for a binary loss.
    level: the target of all other elements. divisor: the n by which the loss was divided.
    """

    labels: Array | None
    level: float
    divisor: float


def targets(frontier: Frontier, row: int) -> list[str]:
    """How the targets of the two runs differ, a clause each; [] where they are equal or unknown."""
    alignment = frontier.alignment
    a, tensor = alignment.a, alignment.a.tensors[alignment.a.tensor[row]]
    told: dict[str, None] = {}
    try:
        if tensor.kind == "grad":
            told.update(dict.fromkeys(_of_logits(frontier, row, tensor.name)))
        elif tensor.kind == "value" and a.figures["numel"][row] == 1:
            for link in frontier.ancestry(row).parents:
                gradient = gradient_of(frontier, row, link)
                if gradient is not None:
                    told.update(dict.fromkeys(_of_logits(frontier, gradient, link.name)))
    except StoreError:
        return []
    return list(told)


def gradient_of(frontier: Frontier, row: int, link: Link) -> int | None:
    """The row of the gradient of a loss's parent, where both runs have it; else None."""
    if link.kind != "value" or link.steps_back:
        return None
    a = frontier.alignment.a
    rows = series(a, row, "grad", link.name)
    rows = rows[(a.step[rows] == a.step[row]) & (a.call[rows] == (link.call or 0))]
    rows = rows[a.pass_index[rows] == link.pass_index]
    matched = rows[np.isin(rows, frontier.alignment.a_row)]
    return int(matched[0]) if len(matched) else None


def _of_logits(frontier: Frontier, gradient: int, name: str) -> Iterator[str]:
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    logits = series(a, gradient, "value", name)
    for place in (a.step, a.pass_index, a.call):
        logits = logits[place[logits] == place[gradient]]
    logits = logits[np.isin(logits, alignment.a_row)]
    if not len(logits) or not FEW <= a.figures["numel"][gradient] <= MOST_ELEMENTS:
        return
    rows = [int(logits[0]), gradient]
    partners = [int(alignment.b_row[np.searchsorted(alignment.a_row, one)]) for one in rows]
    one, two = _target(a, *rows), _target(b, *partners)
    if one is not None and two is not None and (one.labels is None) == (two.labels is None):
        yield from _different(one, two, a.shapes[a.shape[gradient]][-1])


def _different(one: _Target, two: _Target, classes: int) -> Iterator[str]:
    """How two targets differ, a clause each. classes: how many columns the logits have."""
    if one.labels is None or two.labels is None:
        if abs(one.level - two.level) > CLEAR:
            yield f"the loss's target is {one.level:.4g} | {two.level:.4g}"
    else:
        known = (one.labels != UNKNOWN) & (two.labels != UNKNOWN)
        other = np.flatnonzero(known & (one.labels != two.labels))
        if len(other):
            first = int(other[0])
            sides = " | ".join(_shown(int(labels[first])) for labels in (one.labels, two.labels))
            yield (
                f"the loss's targets differ in {len(other):,} of {len(one.labels):,} rows (row "
                f"{first}: label {sides})"
            )
        smoothed = [level * classes for level in (one.level, two.level)]
        if abs(smoothed[0] - smoothed[1]) > CLEAR:
            one_in, two_in = (round(abs(level), 3) for level in smoothed)
            yield f"the loss's label smoothing is {one_in:g} | {two_in:g}"
    if one.divisor * two.divisor < 0:
        yield "the loss is taken with the other sign (Neg)"


def _shown(label: int) -> str:
    return "ignored" if label == IGNORED else str(label)


def _target(table: Table, logits: int, gradient: int) -> _Target | None:
    """The target that explains a gradient by its logits; None where none does."""
    shape = table.shapes[table.shape[gradient]]
    if not shape or table.shapes[table.shape[logits]] != shape:
        return None
    x, g = values(table, logits), values(table, gradient)
    if x is None or g is None:
        return None
    x, g = x.reshape(-1, shape[-1]), g.reshape(-1, shape[-1])
    if shape[-1] > 2:
        return _softmax(x, g)
    used = (g != 0).any(axis=1)
    return _sigmoid(x[used], g[used])


def _softmax(x: Array, g: Array) -> _Target | None:
    """The target of a cross entropy; None where no line explains the gradient.

    A row that has no gradient was ignored, or the model is certain of its label: UNKNOWN.
    """
    if x.size < FEW:
        return None
    p = np.exp(x - x.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    unused = ~(g != 0).any(axis=1)
    labels = g.argmin(axis=1)
    for _ in range(TRIES):
        others = np.ones(g.shape, bool)
        others[np.arange(len(g)), labels] = False
        others[unused] = False
        line = _line(g[others], p[others])
        if line is not None:
            labels[unused] = np.where(p[unused].max(axis=1) > CERTAIN, UNKNOWN, IGNORED)
            return _Target(labels, line[0], line[1])
        again = _farthest(g, p, others)
        if again is None or (again == labels).all():
            return None
        labels = again
    return None


def _farthest(g: Array, p: Array, others: Array) -> Array | None:
    """The element of each row that lies farthest from the line of others; None without a line.

    Of a smoothed label of which the model is sure the gradient is not the row's smallest, so that
    other elements were taken for labels. They are few, and the line all but passes them by.
    """
    spread = g[others] - g[others].mean() if others.any() else g[others]
    size = float(spread @ spread)
    if not size:
        return None
    slope = float(spread @ p[others]) / size
    level = float(p[others].mean() - slope * g[others].mean())
    found: Array = np.abs(p - slope * g - level).argmax(axis=1)
    return found


def _sigmoid(x: Array, g: Array) -> _Target | None:
    with np.errstate(over="ignore"):
        p = 1 / (1 + np.exp(-x))
    line = _line(g.reshape(-1), p.reshape(-1))
    return None if line is None else _Target(None, line[0], line[1])


def _line(g: Array, p: Array) -> tuple[float, float] | None:
    """Level and slope of the line on which all p over g lie; None where they lie on none."""
    if len(g) < FEW:
        return None
    spread = g - g.mean()
    size = float(spread @ spread)
    if not size:
        return None
    slope = float(spread @ (p - p.mean())) / size
    level = float(p.mean() - slope * g.mean())
    left = np.abs(p - slope * g - level).max()
    return (level, slope) if left <= EXACT * float(p.std()) else None
