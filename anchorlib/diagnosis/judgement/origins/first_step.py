"""The first step in which two runs differ, and the records of it.

Up to this step both runs have learned the same. So what differs in it shows how the runs compute,
and the gradients and updates of the step show whether that matters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table, parameters_of
from anchorlib.diagnosis.sizes import Measures
from anchorlib.names import join

__all__ = ["FirstStep", "module_of"]

Array = np.ndarray[Any, Any]
_OUTPUT = re.compile(r":\d+(\.\d+)*$")


class FirstStep:
    """The first step in which the two runs differ.

    rows: A's rows of all measured pairs, which are pairs that differ, in all steps.
    here: the indices into `rows`, and into `measures`, of the pairs of this step.
    steps: the step's number in A, and in B. learnt: the names of parameters.
    followed: (name, rank) of each tensor of which A recorded a gradient.
    partner: index of a tensor in A's table → index of its counterpart in B's.
    rows_of: for A and for B: index of a tensor → its rows in this step.
    """

    def __init__(self, alignment: Alignment, measures: Measures, step: int) -> None:
        self.alignment, self.measures = alignment, measures
        a, b = alignment.a, alignment.b
        self.rows = alignment.a_row[measures.pair]
        self.here = np.flatnonzero(a.step[self.rows] == step)
        self.steps = step, step + alignment.step_offset
        self.learnt = parameters_of(a)
        self.followed = {
            (tensor.name, tensor.rank) for tensor in a.tensors if tensor.kind == "grad"
        }
        _, first = np.unique(a.tensor[alignment.a_row], return_index=True)
        paired = a.tensor[alignment.a_row[first]], b.tensor[alignment.b_row[first]]
        self.partner = dict(zip(*(numbers.tolist() for numbers in paired), strict=True))
        self.rows_of = [by_tensor(table, at) for table, at in zip((a, b), self.steps, strict=True)]

    def within(self, modules: set[str]) -> Array:
        """Return for each tensor of A whether `modules` names it, or the module that makes it.

        modules: names of modules, tensors as `name@kind`, and "" for all gradients of single passes
            (`pass_grad`). Values and gradients alone can be named; for any other record of a
            parameter than a `pass_grad`, the answer is False.
        """
        return np.array(
            [
                (tensor.kind == "pass_grad" and "" in modules)
                or (
                    tensor.kind in ("value", "grad")
                    and tensor.name not in self.learnt
                    and not modules.isdisjoint(
                        (module_of(tensor.name), join(tensor.name, tensor.kind))
                    )
                )
                for tensor in self.alignment.a.tensors
            ]
            or [False],
            bool,
        )


def by_tensor(table: Table, step: int) -> Mapping[int, list[int]]:
    """Return the rows of one step of a table: index of a tensor -> its rows."""
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(table.step == step).tolist():
        rows[int(table.tensor[row])].append(row)
    return rows


def module_of(name: str) -> str:
    """Return the name of the module that makes an output: `rnn` for `rnn:0.1` and for `rnn`."""
    return _OUTPUT.sub("", name)
