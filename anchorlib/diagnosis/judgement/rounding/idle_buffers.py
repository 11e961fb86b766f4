"""Buffers that an evaluation reads although it does not call their module, in one run at least.

    evaluate(model); step(model)          step(model); evaluate(other)

The buffers of all watched models are read as a pass begins, whichever model the pass calls. A batch
norm's running statistics are others before a training forward than behind it, and others while
`torch.func.functional_call` has put a model's average in its place. So a run that evaluates one
model more, or earlier in a step, has other values of the buffers of all models in its evaluations,
although it trains the same. Where a module is not called, nothing follows from its buffers; each
forward of the training reads them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table, buffers_of
from anchorlib.diagnosis.sizes import Measures
from anchorlib.scope import TRAIN

__all__ = ["idle_buffers"]

Array = np.ndarray[Any, Any]


def idle_buffers(alignment: Alignment, measures: Measures) -> Array:
    """Return for each measured pair whether it is a buffer of which nothing is made in its pass.

    That is a buffer in another phase than training, whose module has no value in the record's pass
    in one run at least, though it has one in the training of both runs.
    """
    a = alignment.a
    rows = alignment.a_row[measures.pair], alignment.b_row[measures.pair]
    buffers = buffers_of(a)
    idle = a.where(lambda one: (one.name, one.rank) in buffers and one.kind == "value")[rows[0]]
    idle &= a.phase[rows[0]] != _number(a, TRAIN)
    if not idle.any():
        return idle
    to_a = {renaming.b: renaming.a for renaming in alignment.renamed}
    calls = _calls(a, {}), _calls(alignment.b, to_a)
    for at in np.flatnonzero(idle).tolist():
        own = a.tensors[a.tensor[rows[0][at]]]
        module = own.name.rpartition(".")[0]
        trained = all((own.rank, module, TRAIN) in of for of in calls)
        sides = zip((a, alignment.b), rows, calls, strict=True)
        idle[at] = trained and not all(
            (own.rank, module, *_pass_of(table, int(of[at]))) in known for table, of, known in sides
        )
    return idle


def _calls(table: Table, to_a: Mapping[str, str]) -> set[tuple[Any, ...]]:
    """Return (rank, name, phase) of all values, and (rank, name, phase, step, pass).

    to_a: the run's names -> A's.
    """
    values = np.flatnonzero(table.of_kind("value"))
    columns = (table.tensor, table.phase, table.step, table.pass_index)
    found: set[tuple[Any, ...]] = set()
    for tensor, phase, step, number in zip(*(one[values].tolist() for one in columns), strict=True):
        own = table.tensors[tensor]
        key = (own.rank, to_a.get(own.name, own.name), table.phases[phase])
        found |= {key, (*key, step, number)}
    return found


def _pass_of(table: Table, row: int) -> tuple[str, int, int]:
    """Return the phase, step and pass of a row."""
    phase = table.phases[table.phase[row]]
    return phase, int(table.step[row]), int(table.pass_index[row])


def _number(table: Table, phase: str) -> int:
    """Return the number of a phase among those of a run; -1 where the run has no such phase."""
    return table.phases.index(phase) if phase in table.phases else -1
