"""The first step in which two runs differ, and the records of it.

In this step nothing has been learned otherwise yet. So what differs in it shows by itself how the
runs compute, and all that is learned in it shows whether that matters.
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

    rows: A's rows of all pairs that differ. here: the places in `measures` of those of this step.
    steps: its number in A and in B. learnt: the names of parameters. followed: names and ranks of
    the tensors with gradients. partner: B's number of a tensor for A's. rows_of: the rows of each
    tensor in this step, in A and in B.
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
        """For each tensor of A, whether calls of these modules make it; False for parameters."""
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
    """The rows of each tensor in a step."""
    rows: defaultdict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(table.step == step).tolist():
        rows[int(table.tensor[row])].append(row)
    return rows


def module_of(name: str) -> str:
    """The name of the module that gives a tensor of this name."""
    return _OUTPUT.sub("", name)
