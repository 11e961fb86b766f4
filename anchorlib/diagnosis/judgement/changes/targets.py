"""The target of a loss, computed from the loss's input and the gradient of that input.

Autograd does not follow targets, and few programs record them. But the gradient g of the logits x
is (softmax(x) − y) / n for a cross entropy, and (σ(x) − y) / n for a binary cross entropy. So for
all elements with equal targets y, the probabilities p = softmax(x), or σ(x), lie on one line as a
function of g: p = n·g + y. Its slope is n, and its value at g = 0, called the level, is y. In a
cross entropy, the labels have targets of their own, and lie off the line. Where there is no line,
the loss is a different function, and nothing is said.
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
CLEAR = 1e-3  # difference from which two targets differ
FEW = 8  # elements: a line through fewer points proves nothing
IGNORED, UNKNOWN = -1, -2  # labels of rows without a gradient
CERTAIN = 1 - 1e-5  # probability of a label from which no gradient is left
MOST_ELEMENTS = 1 << 22
TRIES = 3  # choices of labels that are tried: those of the smallest gradient first


class _Target(NamedTuple):
    """A target, computed from a gradient.

    labels: the label of each row, or IGNORED or UNKNOWN; None for a binary loss.
    level: the target y of all elements that are no label.
    divisor: the n by which the loss was divided.
    """

    labels: Array | None
    level: float
    divisor: float


def targets(frontier: Frontier, row: int) -> list[str]:
    """Return clauses on how the targets of a loss differ in the runs; [] if equal or unknown.

    row: a row of A: the gradient of a loss's input, or the loss itself, a value of one number.
    """
    alignment = frontier.alignment
    a, tensor = alignment.a, alignment.a.tensors[alignment.a.tensor[row]]
    clauses: dict[str, None] = {}
    try:
        if tensor.kind == "grad":
            clauses.update(dict.fromkeys(_of_logits(frontier, row, tensor.name)))
        elif tensor.kind == "value" and a.figures["numel"][row] == 1:
            for link in frontier.ancestry(row).parents:
                gradient = gradient_of(frontier, row, link)
                if gradient is not None:
                    clauses.update(dict.fromkeys(_of_logits(frontier, gradient, link.name)))
    except StoreError:
        return []
    return list(clauses)


def gradient_of(frontier: Frontier, row: int, link: Link) -> int | None:
    """Return A's row of the gradient of a loss's input; None unless both runs recorded it.

    row: the row of the loss. link: the input, a parent of the loss.
    """
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
    partners = [int(alignment.b_row[np.searchsorted(alignment.a_row, at)]) for at in rows]
    target_a, target_b = _target(a, *rows), _target(b, *partners)
    if (
        target_a is not None
        and target_b is not None
        and (target_a.labels is None) == (target_b.labels is None)
    ):
        yield from _different(target_a, target_b, a.shapes[a.shape[gradient]][-1])


def _different(target_a: _Target, target_b: _Target, classes: int) -> Iterator[str]:
    """Yield how two targets differ, a clause each. classes: how many columns the logits have."""
    if target_a.labels is None or target_b.labels is None:
        if abs(target_a.level - target_b.level) > CLEAR:
            level_a, level_b = (_rounded(target.level) for target in (target_a, target_b))
            yield f"the loss's target is {level_a:g} | {level_b:g}"
    else:
        known = (target_a.labels != UNKNOWN) & (target_b.labels != UNKNOWN)
        other = np.flatnonzero(known & (target_a.labels != target_b.labels))
        if len(other):
            first = int(other[0])
            sides = " | ".join(
                _shown(int(labels[first])) for labels in (target_a.labels, target_b.labels)
            )
            yield (
                f"the loss's targets differ in {len(other):,} of {len(target_a.labels):,} rows "
                f"(row {first}: label {sides})"
            )
        smoothed = [level * classes for level in (target_a.level, target_b.level)]
        if abs(smoothed[0] - smoothed[1]) > CLEAR:
            smoothing_a, smoothing_b = (round(abs(level), 3) for level in smoothed)
            yield f"the loss's label smoothing is {smoothing_a:g} | {smoothing_b:g}"
    if target_a.divisor * target_b.divisor < 0:
        yield "the loss is taken with the other sign (Neg)"


def _rounded(level: float) -> float:
    """Return a level rounded to the digits that can be known: a level computed as -1.7e-07 is 0."""
    return round(level, 3) + 0.0 if abs(level) < 1 else float(f"{level:.4g}")


def _shown(label: int) -> str:
    return "ignored" if label == IGNORED else str(label)


def _target(table: Table, logits: int, gradient: int) -> _Target | None:
    """Return the target of a cross entropy, by its logits and their gradient; None if none fits.

    The cross entropy is a binary one where the logits have at most two columns.
    logits, gradient: the rows of the two records in `table`.
    """
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
    """Return the target of a cross entropy; None where no line explains the gradient.

    A row of x without a gradient has the label UNKNOWN if the model is certain of a class, which
    leaves no gradient, and IGNORED otherwise.
    x: the logits. g: their gradient, (rows, columns).
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
        farthest = _farthest(g, p, others)
        if farthest is None or (farthest == labels).all():
            return None
        labels = farthest
    return None


def _farthest(g: Array, p: Array, others: Array) -> Array | None:
    """Return, for each row, the column of the element farthest from the line; None without a line.

    The line is that of p over g (see the module's text).
    g, p: the gradient and the probabilities, (rows, columns).
    others: a mask of the elements through which the line is laid: all but those of the labels.

    Where the model is sure of a smoothed label, the label's gradient is not the smallest of its
    row, so that another element was taken for the label. Such rows are few, and hardly move the
    line.
    """
    spread = g[others] - g[others].mean() if others.any() else g[others]
    size = float(spread @ spread)
    if not size:
        return None
    slope = float(spread @ p[others]) / size
    level = float(p[others].mean() - slope * g[others].mean())
    elements: Array = np.abs(p - slope * g - level).argmax(axis=1)
    return elements


def _sigmoid(x: Array, g: Array) -> _Target | None:
    with np.errstate(over="ignore"):
        p = 1 / (1 + np.exp(-x))
    line = _line(g.reshape(-1), p.reshape(-1))
    return None if line is None else _Target(None, line[0], line[1])


def _line(g: Array, p: Array) -> tuple[float, float] | None:
    """Return level and slope of the line p = slope·g + level; None without such a line.

    g: elements of the gradient. p: the probabilities of these elements. None, too, for fewer than
    FEW elements.
    """
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
