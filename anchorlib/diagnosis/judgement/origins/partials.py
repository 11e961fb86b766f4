"""Gradients of which one run alone states that it recorded only a part.

    @torch.compile
    def f(x): h = x.tanh(); return h, h.sum()      # the gradient of h through the sum stays inside

The record of the gradient of h then holds the part that came from outside the compiled code, while
the record of an eager run holds the whole gradient. These are two quantities, so that their
difference is neither a fault nor an explanation. Records that are computed from such a gradient are
judged as if one run had no record of the gradient. Records with equal bits stay a pair, since the
compiled code kept nothing then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import from_outside, upstream
from anchorlib.diagnosis.judgement.origins.origins import Origin
from anchorlib.diagnosis.pairing import Alignment, RecordPlace, Table, statements
from anchorlib.names import join

__all__ = ["Partials", "partials"]

Array = np.ndarray[Any, Any]
FOLLOWING = ("grad", "pass_grad", "updated", "delta")
"""Kinds of records that follow from gradients."""


@dataclass(frozen=True, slots=True)
class Partials:
    """The pairs of differing gradients of which one run alone states that it recorded only a part.

    rows: A's rows of these pairs. followed: for each of these rows, whether both runs have a later
        record that was computed from the gradient, and that shows the effect of the whole gradient.
    """

    alignment: Alignment
    rows: Array
    followed: Array

    def without(self, alignment: Alignment) -> Alignment:
        """Return the alignment with the pairs of this object marked as equal.

        alignment: one with the table of A from which this object was made.
        """
        return replace(alignment, equal=alignment.equal | np.isin(alignment.a_row, self.rows))

    def unknown(self, first: RecordPlace | None, origins: Sequence[Origin]) -> bool:
        """Return whether the verdict depends on the unrecorded parts of these gradients.

        The verdict depends on them where the first of `origins` was computed from one of these
        gradients. It also does where no later record of both runs shows the effect of one of these
        gradients (`followed`), unless the runs part in an earlier step than that gradient's.
        first: where the runs part; None where no other pairs differ.
        """
        a = self.alignment.a
        names = {join(*a.tensors[number][:2]) for number in np.unique(a.tensor[self.rows]).tolist()}
        if origins and names.intersection(origins[0].parents):
            return True
        steps = a.step[self.rows[~self.followed]]
        return len(steps) > 0 and (first is None or bool(steps.min() <= first.step))

    @property
    def clause(self) -> str:
        """A clause that says how many gradients one run recorded only in part; "" without any."""
        count, more = len(self.rows), "s" * (len(self.rows) > 1)
        if not count:
            return ""
        text = f"{count} gradient{more} of which one run saw a part alone"
        if self.followed.all():
            return text
        return f"{text}; what follows from {'them' if more else 'it'} was not recorded in both"


def partials(alignment: Alignment) -> Partials:
    """Return the differing pairs of gradients of which one run alone states to hold a part."""
    pairs = alignment.differing
    rows, others = alignment.a_row[pairs], alignment.b_row[pairs]
    rows = rows[_stated(alignment.a)[rows] != _stated(alignment.b)[others]]
    return Partials(alignment, rows, np.array(list(_followed(alignment, rows)), bool))


def _stated(table: Table) -> Array:
    """Return for each row whether it is a gradient that the run says it recorded in part."""
    names = from_outside(table)
    return table.where(lambda tensor: tensor.kind == "grad" and tensor.name in names)


def _followed(alignment: Alignment, rows: Array) -> Iterator[bool]:
    """Yield for each of `rows` whether both runs have a later record computed from its gradient.

    Such a record is of a kind in FOLLOWING, is none of `rows`, and is of the same step.
    rows: rows of A.
    """
    a = alignment.a
    last: dict[tuple[int, int, int, str], int] = {}
    for row in np.setdiff1d(alignment.a_row, rows).tolist() if len(rows) else ():
        tensor = a.tensors[a.tensor[row]]
        if tensor.kind in FOLLOWING:
            key = (tensor.rank, int(a.phase[row]), int(a.step[row]), tensor.name)
            last[key] = max(last.get(key, -1), int(a.order[row]))
    above: dict[tuple[int, int, str], set[str]] = {}
    for row in rows.tolist():
        tensor, phase = a.tensors[a.tensor[row]], int(a.phase[row])
        who = (tensor.rank, phase, tensor.name)
        if who not in above:
            edges = statements(alignment, tensor.rank)
            above[who] = upstream(edges, tensor.name, a.phases[phase])
        step, order = int(a.step[row]), int(a.order[row])
        yield any(last.get((tensor.rank, phase, step, name), -1) > order for name in above[who])
