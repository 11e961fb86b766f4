"""How bad one operation's own error is, in eps of what it was computed in.

The measured error of one operation with equal inputs, relative L2 against float64, in eps: float32
matrix products of inner size 64, 1k, 16k, 131k: 1.2, 1.9, 2.6, 4.3; convolution 1.8, attention 2.9,
softmax 0.5-2.5, layer norm 0.5, sums 0.6-1.3; everything in bfloat16 0.2-0.3. Two correct forms of
one operation therefore differ by a few eps in float32 and by less than one in low precision.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anchorlib import dtypes
from anchorlib.amounts import figure
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.judgement.conditioning import conditioning
from anchorlib.diagnosis.pairing import Table, compiled
from anchorlib.diagnosis.sizes import Measure
from anchorlib.errors import StoreError

__all__ = [
    "CONVOLUTION",
    "LEARNT",
    "MATMUL",
    "TOLERANCE",
    "Severity",
    "severity",
    "size_of_error",
]

TOLERANCE = 8.0
"""Eps that count as rounding in float32 and float64."""
TOLERANCE_UPDATE = 1.0
"""Eps of the parameter that an update may round by, beside `TOLERANCE` eps of its own: it ends in
adding what changes to the parameter. Optimizers of torch in their forms for each parameter, for all
at once and fused were 0.05 to 0.66 apart, in eps of float32."""
TOLERANCE_LOW = 1.0
"""The same where eps is larger than float32's."""
TOLERANCE_LOW_SUM = 4.0
"""The same for gradients of biases and scales, which some kernels add up in low precision; the root
of the number of terms where that is more."""
LONG_SUM = 1 << 17
"""Terms of a sum up to which the tolerance was measured; it grows with the root of more."""
HIDDEN_OPERATIONS = 16
"""Operations that one compiled node is taken for."""
CANCELLED = 64
"""Eps, relative to its parents' norm, below which a result is what rounding left of a sum."""

BFLOAT16, FLOAT16 = 2.0**-7, 2.0**-10
EPS32 = 2.0**-23
SAMPLE = 1 << 18  # bytes looked at to tell what a float32 tensor was computed in
FEW = 16  # non-zero elements; fewer may be round numbers by chance
MATMUL = re.compile(r"mm|linear|matmul|dotproduct|einsum|bilinear", re.IGNORECASE)
CONVOLUTION = re.compile(r"conv", re.IGNORECASE)
CAST = "ToCopyBackward"
UPDATES = ("updated", "delta")
LEARNT = ("pass_grad", *UPDATES)
"""Kinds that only parameters have: they are of the element type that those are stored in."""
AUTOCAST = "amp.autocast"


class Severity(NamedTuple):
    """error: in eps of the compute dtype, relative to what the operation worked on.

    limit: what rounding may be, in the same unit. eps: of the compute dtype. note: what the scale
    is where it is not the tensor's own norm, else "".
    """

    error: float
    limit: float
    eps: float
    note: str = ""

    @property
    def rounding(self) -> bool:
        """Whether it is no more than rounding."""
        return self.error <= self.limit


def severity(frontier: Frontier, row: int, row_b: int, measure: Measure) -> Severity:
    """How bad the difference of an origin is, its inputs being equal.

    Errors that cannot be measured are nan, and no rounding.
    """
    a, b = frontier.alignment.a, frontier.alignment.b
    ops = frontier.ancestry(row).ops
    eps = max(
        measure.eps,
        _computed_in((a, row), (b, row_b)),
        _of_parents(frontier, row),
        min(_of_autocast(_header(*side), ops) for side in ((a, row), (b, row_b))),
        *(_of_hardware(header, ops) for header in (_header(a, row), _header(b, row_b))),
    )
    absolute = _absolute(measure, float(b.figures["l2"][row_b]))
    norm = max(measure.norm, *(_summed(*side) for side in ((a, row), (b, row_b))))
    scale, note = _scale(frontier, row, norm, eps)
    low = _low_sum(frontier, row, measure, eps) if _is_sum(a, row) else TOLERANCE_LOW
    limit = (TOLERANCE if eps <= EPS32 else low) * _growth(frontier, row, ops)
    limit *= conditioning(frontier, row)
    error = absolute / (eps * scale) if scale else math.inf
    if _kind(frontier, row) in UPDATES:
        usual, limit = limit, _of_update(frontier, row, scale, limit)
        if limit < error <= usual:
            note = f"an update rounds by {figure(limit)} eps of the parameter"
    return Severity(error, limit, eps, note)


def size_of_error(frontier: Frontier, row: int, measure: Measure) -> float:
    """An error in eps beside its like: an update's is that of the parameter, whatever its size."""
    if _kind(frontier, row) != "delta":
        return measure.error_eps
    scale, _ = _scale(frontier, row, measure.norm, measure.eps)
    return measure.error_eps * measure.norm / scale if scale else math.inf


def _of_update(frontier: Frontier, row: int, scale: float, limit: float) -> float:
    """What rounding an update may be, in eps of `scale`; `limit` where its size is not known."""
    changed = [one for one in _updates(frontier, row) if _kind(frontier, one) == "delta"]
    if not changed or not scale:
        return limit
    size = _norm(frontier.alignment.a, changed) / scale
    return min(limit, TOLERANCE_UPDATE + limit * size)


def _updates(frontier: Frontier, row: int) -> list[int]:
    """The rows of one parameter's `updated` and `delta` at one step."""
    layout = frontier.layouts[int(frontier.blocks.layout[frontier.block_of[row]])]
    rows = frontier.blocks.rows_of(int(frontier.block_of[row]))
    name, _, pass_index, call = layout.keys[int(frontier.place_of[row])]
    places = [layout.find((name, kind, pass_index, call)) for kind in UPDATES]
    return [int(rows[place]) for place in places if place is not None]


def _kind(frontier: Frontier, row: int) -> str:
    kind: str = frontier.alignment.a.tensors[frontier.alignment.a.tensor[row]].kind
    return kind


def _low_sum(frontier: Frontier, row: int, measure: Measure, eps: float) -> float:
    """What rounding may be in a low-precision sum, which partial sums of as low precision make.

    torch's layer norm by itself, one thread against two, moves the gradients of weight and bias by
    1.0 and 1.0 eps of bfloat16 (64 terms), 4.2 and 2.7 (512), 7.0 and 13.4 (2,048), 9.0 and 81.7
    (8,192): always below the root of the terms. A multiple of the other, no further from parallel
    than one rounding of each element leaves it, is a factor and no sum's rounding.
    """
    if measure.cosine_distance <= eps**2:
        return TOLERANCE_LOW_SUM
    return max(TOLERANCE_LOW_SUM, math.sqrt(_terms(frontier, row)))


def _absolute(measure: Measure, norm_b: float) -> float:
    """‖b − a‖₂, where a may be all zero."""
    if measure.norm and math.isfinite(measure.error_eps):
        return measure.error_eps * measure.eps * measure.norm
    return norm_b if math.isinf(measure.error_eps) else math.nan


def _scale(frontier: Frontier, row: int, norm: float, eps: float) -> tuple[float, str]:
    """What the error is judged against: the tensor's own norm, or that of what it is made of."""
    a, kind = frontier.alignment.a, _kind(frontier, row)
    if kind in UPDATES:
        # The difference of two parameters has their rounding, not its own.
        of = [*frontier.parents(row), *_updates(frontier, row)]
        size = _norm(a, (one for one in of if _kind(frontier, one) in ("value", "updated")))
        return max(norm, size), "judged against the parameter's size" if kind == "delta" else ""
    if kind.startswith("opt."):
        return norm, ""  # it is no sum of gradients: their size, with a loss scale, is another
    parents = _norm(a, frontier.parents(row))
    if _is_sum(a, row) and parents > norm:
        # A sum's rounding is as large as what it sums, however much of that cancels.
        note = "its terms cancel; judged against them" if norm < CANCELLED * eps * parents else ""
        return parents, note
    if norm < CANCELLED * eps * parents:
        return parents, "its terms cancel; judged against them"
    return norm, ""


def _summed(table: Table, row: int) -> float:
    """How large what a record was summed of is, where comparing made it of several."""
    return 0.0 if table.summed is None else float(table.summed[row])


def _is_sum(table: Table, row: int) -> bool:
    """Whether it is the gradient of a bias or a scale: a sum over everything else."""
    gradient = table.tensors[table.tensor[row]].kind in ("grad", "pass_grad")
    return gradient and len(table.shapes[table.shape[row]]) <= 1


def _norm(table: Table, rows: Iterable[int]) -> float:
    return max((float(table.figures["l2"][row]) for row in rows), default=0.0)


def _growth(frontier: Frontier, row: int, ops: tuple[str, ...]) -> float:
    """How much larger than one operation's the rounding of this stretch may be."""
    count = max(len(ops), HIDDEN_OPERATIONS) if compiled(ops) else max(len(ops), 1)
    return math.sqrt(count) * math.sqrt(max(_terms(frontier, row) / LONG_SUM, 1.0))


def _terms(frontier: Frontier, row: int) -> float:
    """An estimate of how many terms each element sums, as far as shapes tell."""
    a = frontier.alignment.a
    shape = a.shapes[a.shape[row]]
    size = max((int(a.figures["numel"][one]) for one in frontier.parents(row)), default=0)
    gradient = a.tensors[a.tensor[row]].kind in ("grad", "pass_grad")
    own = shape[0] if gradient and shape else math.prod(shape)
    return float(size / max(own, 1))


def _computed_in(*pair: tuple[Table, int]) -> float:
    """The eps of the precision that the float32 tensors of a pair were really computed in.

    Low precision in one of them alone, in a run that was not told to train in it, is no precision
    that was chosen: it is the difference.
    """
    found = [_kept_bits(table, row) for table, row in pair]
    shown = [all(found) or _is_low(table, row) for table, row in pair]
    return max(eps for eps, counts in zip((*found, 0.0), (*shown, True), strict=True) if counts)


def _is_low(table: Table, row: int) -> bool:
    """Whether a run trains in an element type coarser than float32: by autocast, or stored so.

    A run that does not tell what autocast does is one that holds such tensors at all.
    """
    low = [(dtypes.dtype(name).eps or 0.0) > EPS32 for name in table.dtypes]
    if not any(low) or AUTOCAST not in _header(table, row):
        return any(low)
    learnt = np.array([one.kind in LEARNT for one in table.tensors], bool)[table.tensor]
    told = bool(_header(table, row)[AUTOCAST] or not learnt.any())
    return told or bool(np.array(low)[table.dtype[learnt]].any())


def _kept_bits(table: Table, row: int) -> float:
    """The eps of the bits that a float32 tensor uses, 0 where it uses all.

    Under autocast a float32 gradient is what a low-precision kernel gave, cast up: its lower bits
    are all zero.
    """
    if table.dtypes[table.dtype[row]] != "float32" or not table.kept[row]:
        return 0.0
    try:
        raw = next(iter(table.read(row, SAMPLE)), None)
    except StoreError:
        return 0.0
    if raw is None:
        return 0.0
    bits = np.ascontiguousarray(raw).view(np.uint32)
    bits = bits[(bits << 1) != 0]
    if bits.size < FEW:
        return 0.0
    if not (bits & 0xFFFF).any():
        return BFLOAT16
    return 0.0 if (bits & 0x1FFF).any() else FLOAT16


def _of_parents(frontier: Frontier, row: int) -> float:
    """The coarsest eps of its parents, where what was made of them was cast on the way.

    A cast of a parent itself, to something wider, rounds nothing: layer norm under autocast.
    """
    a = frontier.alignment.a
    # Backward reaches the cast that forward began with last.
    beside = -1 if a.tensors[a.tensor[row]].kind == "value" else 0
    links = [link.ops for link in frontier.ancestry(row).parents if not link.saved]
    between = [op for ops in links for op in (ops[:-1] if beside else ops[1:])]
    if not any(op.startswith(CAST) for op in between):
        return 0.0
    names = {a.dtypes[a.dtype[one]] for one in frontier.parents(row)}
    return max((dtypes.dtype(name).eps or 0.0 for name in names), default=0.0)


def _of_autocast(header: Mapping[str, Any], ops: Sequence[str]) -> float:
    """The eps of the products inside a stretch that casts on its way, as autocast has it do."""
    names = str(header.get(AUTOCAST) or "").split("|")
    low = [dtypes.DTYPES[name].eps or 0.0 for name in names if name in dtypes.DTYPES]
    casts = any(op.startswith(CAST) for op in ops)
    return max(low, default=0.0) if casts and any(_multiplies(op) for op in ops) else 0.0


def _multiplies(op: str) -> bool:
    return bool(MATMUL.search(op) or CONVOLUTION.search(op))


def _of_hardware(header: Mapping[str, Any], ops: Iterable[str]) -> float:
    """The eps of the tensor cores or kernels that were allowed to round the inputs."""
    precision = str(header.get("torch.float32_matmul_precision"))
    matmul: float = {"high": FLOAT16, "medium": BFLOAT16}.get(precision, 0.0)
    tf32 = header.get("torch.device", "cpu") != "cpu" and header.get("torch.cudnn.allow_tf32")
    found = 0.0
    for op in ops:
        if MATMUL.search(op):
            found = max(found, matmul)
        elif CONVOLUTION.search(op) and tf32:
            found = max(found, FLOAT16)
    return found


def _header(table: Table, row: int) -> Mapping[str, Any]:
    return table.header.get(table.tensors[table.tensor[row]].rank, {})
