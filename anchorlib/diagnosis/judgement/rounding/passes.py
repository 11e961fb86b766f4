"""The gradients of single passes, of which the gradient that an optimizer reads is the sum.

    (policy + value).backward()        policy.backward(retain_graph=True); value.backward()

One run may call backward once where the other calls it for each loss. Then only the sums can be
compared, and clipping has scaled these. How they round is seen in the gradients of the passes,
which show the format in which they were computed, and what they sum. The gradient of a bias before
a batch norm is a sum whose terms cancel: it consists of rounding.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from anchorlib.diagnosis.judgement.rounding.formats import bits_in_use
from anchorlib.diagnosis.pairing import Table

__all__ = ["format_of_passes", "size_of_terms"]

Side = tuple[Table, int]
PASS = "pass_grad"


def format_of_passes(sides: tuple[Side, Side]) -> float:
    """Return the eps of low precision in passes' gradients, if numbers of passes differ; or 0.0.

    A gradient that one run sums over more passes went through all formats of backward. So the
    gradients of all parameters in the step are looked at. For each run the first of these that is
    of low precision gives an eps; the coarser of the two is returned. 0.0 where both runs call
    backward equally often in the step, for records other than `grad`, and where no run trains in
    low precision. sides: the table and the gradient's row of each run.
    """
    if not _is_added_up_otherwise(sides):
        return 0.0
    return max(_first_low(table, _in_step(table, row, None, PASS)) for table, row in sides)


def size_of_terms(sides: tuple[Side, Side]) -> float:
    """Return the norm of the terms in a bias's gradient, if numbers of passes differ; or 0.0.

    0.0 where both runs call backward equally often in the step, and where the terms are not known.
    The terms are the gradient of the result of the parameter's module, in a run that has one pass
    alone, scaled as clipping scaled the bias's gradient.
    sides: the table and the gradient's row of each run.
    """
    return max(map(_size_of_terms, sides)) if _is_added_up_otherwise(sides) else 0.0


def _is_added_up_otherwise(sides: tuple[Side, Side]) -> bool:
    """Return whether one run calls backward more often in the step of a gradient than the other.

    Where both call it as often, the gradients of the passes are compared by themselves, and what is
    done to their sum does not round as they do. False for records of another kind than `grad`.
    """
    kinds = {table.tensors[table.tensor[row]].kind for table, row in sides}
    return kinds == {"grad"} and len({_backwards(*side) for side in sides}) > 1


def _backwards(table: Table, row: int) -> int:
    """Return how often backward reached parameters in a row's step and rank.

    It is the count of the parameter that was reached most often.
    """
    reached = table.tensor[_in_step(table, row, None, PASS)]
    return int(np.bincount(reached).max(initial=0))


def _size_of_terms(side: Side) -> float:
    """Return the norm of the terms that one run's gradient sums; 0.0 where it is not known.

    The norm is scaled as clipping scaled the gradient. It is known only with a single pass.
    """
    table, row = side
    passes, norms = _passes(table, row), table.figures["l2"]
    if len(passes) != 1 or not norms[passes[0]]:
        return 0.0
    module = table.tensors[table.tensor[row]].name.rpartition(".")[0]
    terms = _in_step(table, row, module, "grad")
    size = max((float(norms[one]) for one in terms), default=0.0)
    return size * float(norms[row] / norms[passes[0]])


def _first_low(table: Table, rows: Iterable[int]) -> float:
    """Return the eps of the first of `rows` that was computed in low precision; 0.0 without one."""
    return next((eps for row in rows if (eps := bits_in_use(table, row))), 0.0)


def _passes(table: Table, row: int) -> list[int]:
    """Return the rows of the `pass_grad` of a row's parameter in the row's step."""
    return _in_step(table, row, table.tensors[table.tensor[row]].name, PASS)


def _in_step(table: Table, row: int, name: str | None, kind: str) -> list[int]:
    """Return the rows of a kind in the step, attempt and rank of a row.

    name: only rows of this tensor; None: of any.
    """
    rank = table.tensors[table.tensor[row]].rank
    which = (table.step == table.step[row]) & (table.attempt == table.attempt[row])
    which &= table.of_kind(kind) if name is None else table.of_tensor(name, kind)
    rows: list[int] = np.flatnonzero(which & (table.rank == rank)).tolist()
    return rows
