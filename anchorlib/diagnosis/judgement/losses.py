"""From which steps on the losses of the two runs differ: mostly later than the first tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing import Alignment, Table, parameters_of

__all__ = ["Losses", "losses"]

Array = np.ndarray[Any, Any]
_LOSS: Final = re.compile(r"(.*\.)?loss", re.IGNORECASE | re.DOTALL)
_SOME_LOSS: Final = re.compile(r".*loss[^.]*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Losses:
    """Where the losses part: the first steps at which they differ.

    name: the tensor taken for the loss.
    first_bit: the first step at which the losses differ in any bit; None where they never do.
    above_1e6: the first step at which they differ by more than 1e-6; None where they never do.
    above_1e3: likewise for a difference of more than 1e-3.
    values: (step, loss of A, loss of B) for each step of which both runs have a loss.
    """

    name: str
    first_bit: int | None
    above_1e6: int | None
    above_1e3: int | None
    values: tuple[tuple[int, float, float], ...]

    def first_without_number(self) -> tuple[int, str, str] | None:
        """Return the first step at which one run alone has a loss that is NaN or infinite.

        The answer is the step, "A" or "B", and "NaN" or "infinite"; None if there is no such step.
        """
        for step, a, b in self.values:
            if math.isfinite(a) != math.isfinite(b):
                run, loss = ("A", a) if math.isfinite(b) else ("B", b)
                return step, run, "NaN" if math.isnan(loss) else "infinite"
        return None


def losses(alignment: Alignment) -> Losses | None:
    """Return where the losses of two runs part; None where the runs have no loss in common.

    The loss is the tensor whose name is, or ends in, the part "loss"; else a tensor whose last part
    contains "loss" (of several the shortest name); else the last scalar that a forward computes. A
    parameter is never the loss, whatever its name and shape. A scalar of which no operation is
    known is taken for the loss only by its name. The records of one rank count, of phase "train" if
    the loss has any there: of the rank whose losses differ first (of several such ranks the
    lowest), else of the lowest rank. Of several such records in a step, the last counts.
    """
    a, b = alignment.a, alignment.b
    scalar = _scalars(a, alignment.a_row) & _scalars(b, alignment.b_row)
    pairs = np.flatnonzero(scalar)
    name = _chosen(a, alignment.a_row[pairs])
    if name is None:
        return None
    pairs = pairs[_of(a, alignment.a_row[pairs], name, ~alignment.equal[pairs])]
    rows_a, rows_b = alignment.a_row[pairs], alignment.b_row[pairs]
    step = a.step[rows_a]
    # The last of each step: records are in order of execution.
    _, last = np.unique(step[::-1], return_index=True)
    last = len(step) - 1 - last
    loss_a, loss_b = _values(a, rows_a[last]), _values(b, rows_b[last])
    with np.errstate(all="ignore"):
        # A loss scale that was taken off again is the unit of a loss (`pairing.loss_scales`).
        apart = np.abs(loss_b / b.scale[rows_b[last]] - loss_a / a.scale[rows_a[last]])
        apart[np.isnan(loss_a) ^ np.isnan(loss_b)] = np.inf
        # Infinities of either sign read as inf: the bits tell two signs apart.
        apart[np.isinf(loss_a) & np.isinf(loss_b) & ~alignment.equal[pairs[last]]] = np.inf
    values = zip(step[last].tolist(), loss_a.tolist(), loss_b.tolist(), strict=True)
    steps = step[last]
    return Losses(
        name=a.tensors[int(a.tensor[rows_a[0]])].name,
        first_bit=_first(steps, ~alignment.equal[pairs[last]]),
        above_1e6=_first(steps, apart > 1e-6),
        above_1e3=_first(steps, apart > 1e-3),
        values=tuple(values),
    )


def _scalars(table: Table, rows: Array) -> Array:
    value = table.of_kind("value")[rows]
    real = np.array([dtypes.dtype(name).family == "float" for name in table.dtypes] or [False])
    scalars: Array = (table.figures["numel"][rows] == 1) & value & real[table.dtype[rows]]
    return scalars


def _chosen(a: Table, rows: Array) -> str | None:
    parameters = parameters_of(a)
    names: list[str] = sorted(
        {a.tensors[one].name for one in np.unique(a.tensor[rows])} - parameters
    )
    for called in (_LOSS, _SOME_LOSS):
        if named := [name for name in names if called.fullmatch(name)]:
            return min(named, key=len)
    made = {
        edges.name for statements in a.edges.values() for edges in statements if edges.ops
    } - parameters
    computed = a.where(lambda tensor: tensor.name in made)[rows]
    # A bias may have one element too; the loss is a scalar and comes last.
    shapeless = np.array([shape == () for shape in a.shapes] or [False])[a.shape[rows]]
    last = rows[computed & shapeless][-1:].tolist()
    return str(a.tensors[int(a.tensor[last[0]])].name) if last else None


def _of(a: Table, rows: Array, name: str, differs: Array) -> Array:
    """Return a mask of `rows`: the records of the loss `name` on the rank that counts.

    That rank is the one whose losses differ first. Where it has records of the loss in training,
    its other records of the loss do not count. differs: whether each row differs from B's.
    """
    mine = a.where(lambda tensor: tensor.name == name)[rows]
    ranks = a.rank[rows]
    parted = mine & differs
    if parted.any():
        mine &= ranks == ranks[parted & (a.step[rows] == a.step[rows][parted].min())].min()
    elif mine.any():
        mine &= ranks == ranks[mine].min()
    train = np.array([phase == "train" for phase in a.phases])[a.phase[rows]]
    counting: Array = mine & train if (mine & train).any() else mine
    return counting


def _values(table: Table, rows: Array) -> Array:
    """Return the values of scalar records, from their summaries: the sum of a scalar is its value.

    Sums leave out elements that are not finite; the counts of NaN and infinities show these. An
    infinity of either sign becomes inf.
    """
    losses_of_rows: Array = table.figures["sum"][rows].astype(np.float64)
    losses_of_rows[table.figures["nan"][rows] > 0] = np.nan
    infinite = table.figures["inf"][rows] > 0
    losses_of_rows[infinite] = np.inf
    return losses_of_rows


def _first(steps: Array, which: Array) -> int | None:
    return int(steps[which].min()) if which.any() else None
