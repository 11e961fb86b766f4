"""How large one operation's own error is, in eps of its compute dtype, and how large it may be.

The errors of single operations with equal inputs were measured as relative L2 distances from
float64, in eps. float32: matrix products of inner size 64, 1k, 16k, 131k: 1.2, 1.9, 2.6, 4.3;
convolution 1.8, attention 2.9, softmax 0.5-2.5, layer norm 0.5, sums 0.6-1.3. bfloat16: 0.2-0.3 for
all of them. Two correct forms of one operation therefore differ by a few eps in float32, and by
less than one eps in low precision.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.rounding.conditioning import conditioning
from anchorlib.diagnosis.judgement.rounding.formats import (
    MOVE,
    VIEW,
    computed_in,
    header_of,
    kind_of,
    of_casts,
    of_hardware,
    of_low_gradients,
    of_numbers,
    of_parents,
    of_unlike_parents,
    type_eps,
    widened,
)
from anchorlib.diagnosis.judgement.rounding.logarithms import size_of_logarithms
from anchorlib.diagnosis.judgement.rounding.moving_averages import errors_of_averages
from anchorlib.diagnosis.judgement.rounding.passes import format_of_passes, size_of_terms
from anchorlib.diagnosis.judgement.rounding.probabilities import of_probabilities
from anchorlib.diagnosis.judgement.series import values
from anchorlib.diagnosis.pairing import Table, compiled, opaque, with_operations
from anchorlib.diagnosis.sizes import FILLED, Measure, autocast_eps, multiplies
from anchorlib.errors import StoreError

__all__ = [
    "RECURRENT",
    "TOLERANCE",
    "RoundingBound",
    "rounding_bound",
    "size_of_error",
]

TOLERANCE = 8.0
"""Eps that count as rounding in float32 and float64."""
TOLERANCE_UPDATE = 1.0
"""By how many eps of the parameter an update may round, besides `TOLERANCE` eps of the update
itself, since an update ends in an addition to the parameter. torch's optimizers in their
single-tensor, foreach and fused forms were 0.05 to 0.66 eps of float32 apart."""
TOLERANCE_LOW = 1.0
"""Eps that count as rounding in types that are coarser than float32."""
TOLERANCE_LOW_SUM = 4.0
"""Eps that count as rounding in types coarser than float32 for gradients of biases and scales,
which some kernels add up in low precision; or the root of the number of terms where that is more.
"""
LONG_SUM = 1 << 17
"""The number of terms up to which the tolerance was measured; for longer sums, the tolerance grows
with the root of their number."""
STEP_OPERATIONS = 10
"""How many operations one step of a recurrent layer is taken for: products, sums and gates. An LSTM
of two layers over 8 steps was 32 eps from itself between a CPU and an H100, whose kernels
approximate the gates."""
RECURRENT = re.compile(r"\w*Rnn\w*Backward")
HIDDEN_OPERATIONS = 16
"""How many operations one node of compiled code is taken for, or one module whose operations no
statement names."""
CANCELLED = 64
"""A result whose norm is less than so many eps of its parents' norm is the rest of a sum whose
terms cancel."""

EPS32 = 2.0**-23
ATTENTION = re.compile(r"attention", re.IGNORECASE)
UPDATES = ("updated", "delta")


class RoundingBound(NamedTuple):
    """How large the error of an operation is, and how large rounding may make it.

    error: ‖b − a‖₂ in eps of the compute dtype, relative to a norm: the tensor's own, or the norm
    that `note` names. nan where it could not be measured.
    limit: the largest error that rounding makes, in the unit of `error`.
    eps: the eps of the compute dtype.
    note: to what the error is relative, where that is not the tensor's own norm; else "".
    """

    error: float
    limit: float
    eps: float
    note: str = ""

    @property
    def rounding(self) -> bool:
        """Whether rounding explains the error; False for an error of nan."""
        return self.error <= self.limit


def rounding_bound(
    frontier: Frontier, row: int, row_b: int, measure: Measure, ops_b: Sequence[str] = ()
) -> RoundingBound:
    """Return how large an origin's error is, and how large rounding may make it.

    The origin's inputs are taken to be equal in both runs.
    row, row_b: the origin's rows in A and in B. measure: how far its two records are apart.
    ops_b: B's operations between the origin and its parents, where they are known.
    An error that cannot be measured is nan, and does not count as rounding.
    """
    a, b = frontier.alignment.a, frontier.alignment.b
    ops = _operations(frontier, row)
    eps = max(
        measure.eps,
        computed_in((a, row), (b, row_b)),
        of_parents(frontier, row),
        of_unlike_parents(frontier, row),
        min(autocast_eps(header_of(*side), ops) for side in ((a, row), (b, row_b))),
        *(of_hardware(header, ops) for header in (header_of(a, row), header_of(b, row_b))),
    )
    absolute = _absolute(measure, float(b.figures["l2"][row_b]))
    # A widened result is measured by its own size: it was not rounded to the narrow type. A result
    # that B alone computes in low precision is measured by its own size, too, and so is a gradient
    # beside its passes' gradients: these are larger by what clipping and a loss scale took away.
    own, eps = (
        eps,
        max(
            eps,
            widened(frontier, row),
            format_of_passes(((a, row), (b, row_b))),
            of_casts(frontier, row, ops_b),
            of_number := of_numbers(frontier, row, row_b, ops_b),
            of_low_gradients(frontier, row) if _is_sum(a, row) else 0.0,
            min(autocast_eps(header_of(*side), ops_b) for side in ((a, row), (b, row_b))),
        ),
    )
    norm = max(measure.norm, *(_summed(*side) for side in ((a, row), (b, row_b))))
    once = _rounds_once(frontier, row, ops, ops_b)
    scale, note = _scale(frontier, row, row_b, norm, min(own, EPS32) if once else own)
    low = _low_sum(frontier, row, measure, eps) if _is_sum(a, row) else TOLERANCE_LOW
    limit = (TOLERANCE if eps <= EPS32 else low) * _growth(frontier, row, ops, ops_b)
    limit += float(errors_of_averages(frontier.alignment, np.array([row]))[0]) / eps
    if measure.cosine_distance > eps**2:  # a factor on the whole record is no rounding of a norm
        limit *= conditioning(frontier, row)
    if of_number > own:  # the operations before the cast computed wider
        limit = min(limit, TOLERANCE_LOW_SUM)
    limit = max(limit, of_probabilities(frontier, row, ops, ops_b))
    error = absolute / (eps * scale) if scale else math.inf
    if kind_of(frontier, row) in UPDATES:
        usual, limit = limit, _of_update(frontier, row, scale, limit)
        if limit < error <= usual:
            note = f"an update rounds by {figure(limit)} eps of the parameter"
    return RoundingBound(error, limit, eps, note)


def _operations(frontier: Frontier, row: int) -> tuple[str, ...]:
    """Return the names of the operations of A between a row and its parents.

    A module's call under `no_grad` states no operations. For such a call, the operations of a call
    of the module with gradients are returned, where A has one.
    """
    ops = frontier.ancestry(row).ops
    if not opaque(ops):
        return ops
    a = frontier.alignment.a
    own = a.tensors[a.tensor[row]]
    edges = with_operations(a, own.rank, own.name)
    return ops if edges is None else edges.ops


def size_of_error(frontier: Frontier, row: int, measure: Measure) -> float:
    """Return the error of a row in eps; that of an update (`delta`) is relative to its parameter.

    So the errors of all updates can be compared: relative to the update itself, a rounding of the
    parameter would be a large error of a tiny update. inf where update and parameter are zero.
    row: a row of A. measure: how far its record is from B's.
    """
    if kind_of(frontier, row) != "delta":
        return measure.error_eps
    scale = _size_of_update(frontier, row, measure.norm)
    return measure.error_eps * measure.norm / scale if scale else math.inf


def _size_of_update(frontier: Frontier, row: int, norm: float) -> float:
    """Return the larger norm of an update and its parameter.

    An update rounds as its parameter does. norm: the norm of the update.
    """
    a = frontier.alignment.a
    of = [*frontier.parents(row), *_updates(frontier, row)]
    sizes = (parent for parent in of if kind_of(frontier, parent) in ("value", "updated"))
    return max(norm, _norm(a, sizes))


def _of_update(frontier: Frontier, row: int, scale: float, limit: float) -> float:
    """Return the largest rounding of an update in eps of `scale`, but at most `limit`.

    scale: the larger norm of update and parameter. limit: by how many eps of the update its
    operations may round. `limit` is returned, too, where the size of the update is not known.
    """
    changed = [update for update in _updates(frontier, row) if kind_of(frontier, update) == "delta"]
    if not changed or not scale:
        return limit
    size = _norm(frontier.alignment.a, changed) / scale
    return min(limit, TOLERANCE_UPDATE + limit * size)


def _updates(frontier: Frontier, row: int) -> list[int]:
    """Return the rows of `updated` and `delta` of a row's parameter, in the row's step and pass."""
    layout = frontier.layouts[int(frontier.blocks.layout[frontier.block_of[row]])]
    rows = frontier.blocks.rows_of(int(frontier.block_of[row]))
    name, _, pass_index, call = layout.keys[int(frontier.place_of[row])]
    places = [layout.find((name, kind, pass_index, call)) for kind in UPDATES]
    return [int(rows[place]) for place in places if place is not None]


def _low_sum(frontier: Frontier, row: int, measure: Measure, eps: float) -> float:
    """Return the largest rounding, in eps, of a sum whose partial sums are of low precision too.

    It is the root of the number of terms, and at least TOLERANCE_LOW_SUM. The gradients of weight
    and bias of torch's layer norm, computed with one thread and with two, differ by 1.0 and 1.0 eps
    of bfloat16 (64 terms), 4.2 and 2.7 (512), 7.0 and 13.4 (2,048), 9.0 and 81.7 (8,192): always by
    less than that root. Where one record is a multiple of the other up to one rounding of each
    element, the records differ by a factor, which the rounding of a sum does not make: then the
    result is TOLERANCE_LOW_SUM.
    """
    if measure.cosine_distance <= eps**2:
        return TOLERANCE_LOW_SUM
    return max(TOLERANCE_LOW_SUM, math.sqrt(_terms(frontier, row)))


def _rounds_once(frontier: Frontier, row: int, ops: Sequence[str], ops_b: Sequence[str]) -> bool:
    """Return whether both runs make a row by one low-precision product that rounds only its result.

    The product's operands must be recorded tensors of low precision. Its terms are added up in
    float32: however much of them cancels, the rest is rounded once.
    ops, ops_b: the operations of A and of B that made the row.
    """
    a = frontier.alignment.a
    computing = [op for op in ops if not (VIEW.search(op) or MOVE.match(op))]
    single = len(computing) == 1 and list(ops_b) == computing and multiplies(computing[0])
    if not single or ATTENTION.search(computing[0]):
        return False
    made_of = frontier.parents(row, saved=True)
    return bool(made_of) and all(type_eps(a, each) > EPS32 for each in (row, *made_of))


def _absolute(measure: Measure, norm_b: float) -> float:
    """Return ‖b − a‖₂ of a pair, also where a is all zero; nan where it was not measured.

    norm_b: the norm of b.
    """
    if measure.norm and math.isfinite(measure.error_eps):
        return measure.error_eps * measure.eps * measure.norm
    return norm_b if math.isinf(measure.error_eps) else math.nan


def _scale(frontier: Frontier, row: int, row_b: int, norm: float, eps: float) -> tuple[float, str]:
    """Return the norm to which the error of a row is relative, and a note on it.

    The note is "" where the norm is the tensor's own. A tensor whose terms cancel, or that is a
    sum, is judged against the norm of its parents, an update against its parameter, and a logarithm
    near zero as if it were of size 1.
    norm: the tensor's own norm. eps: that of the compute dtype.
    """
    a, kind = frontier.alignment.a, kind_of(frontier, row)
    if kind in UPDATES:
        size = _size_of_update(frontier, row, norm)
        return size, "judged against the parameter's size" if kind == "delta" else ""
    if kind == "grad" and (size := _size_beside_a_written_gradient(a, row)) > norm:
        return size, "the program wrote it; judged against the parameter's size"
    if kind.startswith("opt."):
        return norm, ""  # its parents are gradients, whose norms may carry a loss scale
    parents = max((_size_of_parent(a, parent) for parent in frontier.parents(row)), default=0.0)
    if _is_sum(a, row):
        parents = max(parents, size_of_terms(((a, row), (frontier.alignment.b, row_b))))
    if _is_sum(a, row) and parents > norm:
        # The rounding of a sum is as large as that of its terms, however much of them cancels.
        note = "its terms cancel; judged against them" if norm < CANCELLED * eps * parents else ""
        return parents, note
    of_logarithms = size_of_logarithms(frontier, row, row_b)
    if of_logarithms <= parents > norm / (CANCELLED * eps):
        return parents, "its terms cancel; judged against them"
    if of_logarithms > norm:
        return of_logarithms, "logarithms near zero; judged as of size 1"
    return norm, ""


def _size_of_parent(table: Table, row: int) -> float:
    """Return the norm of a parent, without the elements that a mask filled with a large number.

    A softmax reads nothing of these. 0.0 where a mask filled elements, and values were not kept.
    """
    if not table.figures["min"][row] <= FILLED:
        return float(table.figures["l2"][row])
    try:
        read = values(table, row)
    except StoreError:
        read = None
    return 0.0 if read is None else float(np.linalg.norm(read[read > FILLED]))


def _size_beside_a_written_gradient(table: Table, row: int) -> float:
    """Return the norm of the parameter whose gradient a program wrote itself; 0.0 if it did not.

    Such a gradient is often a difference of parameters, as that of a server from the mean of its
    clients, and rounds as these do. No backward makes it: the run has no gradient of a single pass
    for the parameter in any step, though it records such gradients of other parameters.
    """
    own = table.tensors[table.tensor[row]]
    made = table.of_kind("pass_grad") & (table.rank == own.rank)
    if not made.any() or table.of_tensor(own.name, "pass_grad", own.rank).any():
        return 0.0
    here = (table.step == table.step[row]) & (table.attempt == table.attempt[row])
    return _norm(table, np.flatnonzero(here & table.of_tensor(own.name, "updated", own.rank)))


def _summed(table: Table, row: int) -> float:
    """Return the norm of the terms that the comparison added up to make a record; else 0.0.

    0.0 is returned for a record that the run itself stored.
    """
    return 0.0 if table.summed is None else float(table.summed[row])


def _is_sum(table: Table, row: int) -> bool:
    """Return whether a row is the gradient of a bias or a scale: a sum over all other dimensions.

    Such a gradient is recognised by its shape, which has at most one axis.
    """
    gradient = table.tensors[table.tensor[row]].kind in ("grad", "pass_grad")
    return gradient and len(table.shapes[table.shape[row]]) <= 1


def _norm(table: Table, rows: Iterable[int]) -> float:
    """Return the largest norm of the records in `rows`; 0.0 without rows."""
    return max((float(table.figures["l2"][row]) for row in rows), default=0.0)


def _growth(frontier: Frontier, row: int, ops: tuple[str, ...], ops_b: Sequence[str]) -> float:
    """Return by how much several operations and long sums enlarge the tolerance; at least 1.

    The tolerance is that of a single operation; n operations enlarge it √n times. A kernel for a
    whole recurrent layer computes STEP_OPERATIONS of them in each of its steps.
    ops: the operations that made the row in A. ops_b: in B, where they are known.
    """
    hidden = compiled(ops) or opaque(ops)
    count = max(len(ops), HIDDEN_OPERATIONS) if hidden else max(len(ops), 1)
    layers = max(sum(bool(RECURRENT.match(op)) for op in each) for each in (ops, ops_b))
    if layers:
        count += STEP_OPERATIONS * layers * _steps_of_a_sequence(frontier, row)
    return math.sqrt(count) * math.sqrt(max(_terms(frontier, row) / LONG_SUM, 1.0))


def _steps_of_a_sequence(frontier: Frontier, row: int) -> int:
    """Return how many steps a recurrent layer makes: the shorter of the axes batch and time.

    Which of the two first axes is which depends on a layer's settings. 1 where neither the row nor
    a parent has three axes.
    """
    a = frontier.alignment.a
    shapes = [a.shapes[a.shape[one]] for one in (row, *frontier.parents(row))]
    return max((min(shape[:2]) for shape in shapes if len(shape) == 3), default=1)


def _terms(frontier: Frontier, row: int) -> float:
    """Return an estimate of how many terms each element of a row sums, by the parents' shapes."""
    a = frontier.alignment.a
    shape = a.shapes[a.shape[row]]
    size = max((int(a.figures["numel"][parent]) for parent in frontier.parents(row)), default=0)
    gradient = a.tensors[a.tensor[row]].kind in ("grad", "pass_grad")
    own = shape[0] if gradient and shape else math.prod(shape)
    return float(size / max(own, 1))
