"""The formats in which operations computed, each as its eps: often coarser than the record's own.

Autocast rounds the operands of products to a low precision, casts widen what was rounded before,
and hardware may round the operands of products. The coarsest format between a record and its
parents is that in which its error is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Table, with_operations
from anchorlib.diagnosis.sizes import AUTOCAST, CAST, CONVOLUTION, MATMUL
from anchorlib.errors import StoreError
from anchorlib.record import Edges

__all__ = [
    "DEVICES",
    "LEARNT",
    "MOVE",
    "VIEW",
    "bits_in_use",
    "computed_in",
    "header_of",
    "kind_of",
    "of_casts",
    "of_hardware",
    "of_low_gradients",
    "of_numbers",
    "of_parents",
    "of_unlike_parents",
    "type_eps",
    "widened",
]

BFLOAT16, FLOAT16 = 2.0**-7, 2.0**-10
EPS32 = 2.0**-23
SAMPLE = 1 << 18  # bytes that are read to find the precision in which a float32 tensor was computed
FEW = 16  # non-zero elements: fewer elements may all be round numbers by chance
VIEW = re.compile(r"view|reshape|transpose|permute|squeeze|select|slice|alias", re.IGNORECASE)
MOVE = re.compile(r"(T|Expand|Clone|Flatten|Contiguous)Backward")
LEARNT = ("pass_grad", "updated", "delta")
"""Kinds that only parameters have; their element type is that in which the parameter is stored."""
DEVICE, DEVICES = "torch.device", "tensors.device"
MATMUL_PRECISION = "torch.float32_matmul_precision"


def computed_in(*pair: tuple[Table, int]) -> float:
    """Return the eps of the precision in which the float32 tensors of a pair were computed; or 0.

    0 where the bits of the tensors show no precision below float32. Low precision in one tensor
    alone does not count in a run that does not train in low precision: nobody chose that precision,
    and it may be the very fault that is to be found. pair: A's table and its row, then B's.
    """
    kept_bits = [_kept_bits(table, row) for table, row in pair]
    shown = [all(kept_bits) or _is_low(table, row) for table, row in pair]
    return max(eps for eps, counts in zip((*kept_bits, 0.0), (*shown, True), strict=True) if counts)


def bits_in_use(table: Table, row: int) -> float:
    """Return the eps of the bits that a float32 tensor uses; 0 where it uses all of them.

    A result of low precision that was cast to float32 uses few of its bits. 0, too, in a run that
    does not train in low precision, and where the values were not kept.
    """
    return _kept_bits(table, row) if _is_low(table, row) else 0.0


def _is_low(table: Table, row: int) -> bool:
    """Return whether a run trains in a type coarser than float32, by autocast or in its parameters.

    A run that does not state what autocast does counts where it holds any tensor of such a type.
    row: any row of the rank whose header is read.
    """
    low = [(dtypes.dtype(name).eps or 0.0) > EPS32 for name in table.dtypes]
    if not any(low) or AUTOCAST not in header_of(table, row):
        return any(low)
    learnt = table.of_kind(*LEARNT)
    in_low = bool(header_of(table, row)[AUTOCAST] or not learnt.any())
    return in_low or bool(np.array(low)[table.dtype[learnt]].any())


def _kept_bits(table: Table, row: int) -> float:
    """Return the eps of the bits that a float32 tensor uses; 0 where it uses all bits.

    Under autocast a float32 gradient is the result of a low-precision kernel, cast up: its lower
    bits are all zero. 0, too, for other types, for values that were not kept or cannot be read, and
    for fewer than FEW numbers other than zero.
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


def of_parents(frontier: Frontier, row: int) -> float:
    """Return the coarsest eps of a row's parents if a result between them and the row was cast.

    Such a cast shows that this result had the dtype of the parents. A cast right after a parent
    does not count: it widens the parent, which rounds nothing, as in layer norm under autocast. Nor
    do several such casts, as of logits of which two terms of a loss are made.
    Without a cast, a parameter's gradient may be the sum of the gradients of several uses, each of
    which was rounded, though their sum does not show it: then the finest eps of these is returned.
    0 where neither is the case.
    """
    a = frontier.alignment.a
    # Operations stand in the order of backward: the cast of a parent is the last of a value's
    # operations, and the first of a gradient's.
    beside = -1 if a.tensors[a.tensor[row]].kind == "value" else 0
    links = [_computing(link.ops) for link in frontier.ancestry(row).parents if not link.saved]
    between = [op for ops in links for op in (ops[:-1] if beside else ops[1:])]
    if not any(op.startswith(CAST) for op in between) or _widens_parents(a, row):
        return _of_uses(frontier, row)
    names = {a.dtypes[a.dtype[parent]] for parent in frontier.parents(row)}
    return max((dtypes.dtype(name).eps or 0.0 for name in names), default=0.0)


def of_unlike_parents(frontier: Frontier, row: int) -> float:
    """Return the coarsest eps of parents that one run holds in a wider type; 0 without any.

    The two records of such a parent count as equal if they are equal once rounded to the coarser
    type. So what the runs compute from the parent may differ by a rounding of that type. 0 also
    unless both runs train in low precision: a cast in one run alone may be the very fault.
    """
    alignment, coarsest = frontier.alignment, 0.0
    own = int(np.searchsorted(alignment.a_row, row))
    sides = ((alignment.a, row), (alignment.b, int(alignment.b_row[own])))
    if not all(_is_low(*side) for side in sides):
        return coarsest
    for parent in frontier.parents(row, saved=True):
        pair = int(np.searchsorted(alignment.a_row, parent))
        if alignment.a_row[pair : pair + 1].tolist() != [parent]:
            continue
        mine = type_eps(alignment.a, parent)
        other = type_eps(alignment.b, int(alignment.b_row[pair]))
        if mine != other:
            coarsest = max(coarsest, mine, other)
    return coarsest


def of_casts(frontier: Frontier, row: int, ops_b: Sequence[str]) -> float:
    """Return the eps of a value's only parent where B computes in its dtype before a cast; else 0.

    Operations stand in the order of backward, so that operations behind a cast in the list ran
    before the cast. 0 for a value with several parents: the list does not show to which parent an
    operation belongs.
    ops_b: B's operations between the value and its parent.
    """
    parents = frontier.parents(row)
    if kind_of(frontier, row) != "value" or len(parents) != 1:
        return 0.0
    computing = _computing(ops_b)
    casts = [place for place, op in enumerate(computing) if op.startswith(CAST)]
    if not casts or all(op.startswith(CAST) for op in computing[casts[0] :]):
        return 0.0
    pair = int(np.searchsorted(frontier.alignment.a_row, row))
    if _widens_parents(frontier.alignment.b, int(frontier.alignment.b_row[pair])):
        return 0.0
    return type_eps(frontier.alignment.a, parents[0])


def _widens_parents(table: Table, row: int) -> bool:
    """Return whether all casts that made a value are of its parents, before anything is computed.

    False where the run states no casts for the value, and for other kinds than values.
    """
    own = table.tensors[table.tensor[row]]
    edges = with_operations(table, own.rank, own.name) if own.kind == "value" else None
    if edges is None or len(edges.inputs) != len(edges.ops):
        return False
    casts = [place for place, op in enumerate(edges.ops) if op.startswith(CAST)]
    return bool(casts) and not any(_computes_before(edges, place) for place in casts)


def _computes_before(edges: Edges, place: int) -> bool:
    """Return whether an operation that computes, not a cast or a view, leads to that at `place`."""
    waiting, seen = [place], {place}
    while waiting:
        for source in edges.inputs[waiting.pop()]:
            if not 0 < source < len(edges.ops) or source in seen:
                continue
            op = edges.ops[source]
            if not (op.startswith(CAST) or VIEW.search(op) or MOVE.match(op)):
                return True
            seen.add(source)
            waiting.append(source)
    return False


def _computing(ops: Sequence[str]) -> list[str]:
    """Return the operations that do more than move bits: a view before a cast rounds nothing."""
    return [op for op in ops if not (VIEW.search(op) or MOVE.match(op))]


def of_numbers(frontier: Frontier, row: int, row_b: int, ops_b: Sequence[str]) -> float:
    """Return the eps of the low precision in which a single number's gradient was summed; else 0.

        logits = image @ text.T * scale.exp();   cross_entropy(logits.float(), target)

    A tensor without dimensions, such as a learnt temperature, has no part in deciding the type of a
    result: what it multiplies stays in bfloat16, and so does the sum that is its gradient, although
    the number and its gradient are stored in float32. The sum is known to be of low precision where
    the gradient from which it was computed is of low precision; or where both runs are under
    autocast, cast between that gradient and the sum, and compute something behind the first cast.
    row, row_b: the gradient's rows in A and in B. ops_b: B's operations that made the gradient.
    """
    a, b = frontier.alignment.a, frontier.alignment.b
    if kind_of(frontier, row) not in ("grad", "pass_grad") or a.shapes[a.shape[row]]:
        return 0.0
    parents = [one for one in frontier.parents(row) if kind_of(frontier, one) == "grad"]
    given = min((type_eps(a, parent) for parent in parents), default=0.0)
    sides = ((header_of(a, row), frontier.ancestry(row).ops), (header_of(b, row_b), ops_b))
    return max(given, min(_behind_a_cast(header, ops) for header, ops in sides))


def of_low_gradients(frontier: Frontier, row: int) -> float:
    """Return the finest eps of the recorded gradients from which a row is computed; else 0.

    A norm under autocast takes gradients in bfloat16, and adds them up to the float32 gradients of
    its weight and bias. Its kernels round the terms of these sums to bfloat16 or not: those of an
    H100 for two memory layouts were 0.4 eps of bfloat16 apart. 0 where any of these gradients is
    not coarser than float32, or none is recorded.
    """
    a = frontier.alignment.a
    parents = [one for one in frontier.parents(row) if kind_of(frontier, one) == "grad"]
    finest = min((type_eps(a, one) for one in parents), default=0.0)
    return finest if finest > EPS32 else 0.0


def _behind_a_cast(header: Mapping[str, Any], ops: Sequence[str]) -> float:
    """Return the eps of autocast's type if any of a gradient's operations computes after a cast.

    0 otherwise. Views do not compute. header: the run's, which names autocast's type. ops: the
    operations, in the order of backward.
    """
    casts = [place for place, op in enumerate(ops) if op.startswith(CAST)]
    behind = ops[casts[0] :] if casts else ()
    computes = any(not op.startswith(CAST) and not VIEW.search(op) for op in behind)
    names = str(header.get(AUTOCAST) or "").split("|")
    low = [dtypes.DTYPES[name].eps or 0.0 for name in names if name in dtypes.DTYPES]
    return max(low, default=0.0) if computes else 0.0


def widened(frontier: Frontier, row: int) -> float:
    """Return the coarsest eps of a value's narrower parents that several operations widen; else 0.

    A narrower parent has a coarser dtype than the value. There is no cast among the operations:
    torch widens a low-precision operand that meets a wider operand, and the operations before that
    ran in low precision. A single operation does not count: it widens its operands before it
    computes.
    """
    a = frontier.alignment.a
    if kind_of(frontier, row) != "value":
        return 0.0
    named = {
        a.tensors[a.tensor[parent]].name: type_eps(a, parent) for parent in frontier.parents(row)
    }
    sizes_found = [
        named.get(link.name, 0.0)
        for link in frontier.ancestry(row).parents
        if not link.saved and not any(op.startswith(CAST) for op in link.ops)
        # Of two operations that compute, the first computes in the narrow type.
        if sum(not VIEW.search(op) for op in link.ops) > 1
    ]
    return max((eps for eps in sizes_found if eps > type_eps(a, row)), default=0.0)


def _of_uses(frontier: Frontier, row: int) -> float:
    """Return the finest eps of the gradients that a gradient of several uses sums; else 0.

    0 for a record that is no such sum, and where that eps is not coarser than the row's own.
    """
    a = frontier.alignment.a
    if kind_of(frontier, row) not in ("grad", "pass_grad"):
        return 0.0
    parents = frontier.ancestry(row).parents
    links = [link for link in parents if not link.saved and link.kind == "grad"]
    rows = [parent for parent in frontier.parents(row) if kind_of(frontier, parent) == "grad"]
    least = min((type_eps(a, one) for one in rows), default=0.0)
    return least if len(links) > 1 and least > type_eps(a, row) else 0.0


def type_eps(table: Table, row: int) -> float:
    return dtypes.dtype(table.dtypes[table.dtype[row]]).eps or 0.0


def of_hardware(header: Mapping[str, Any], ops: Iterable[str]) -> float:
    """Return the eps to which tensor cores or kernels may round their inputs; 0 if they may not.

    header: the run's header, which names device and settings. ops: the operations by which a record
    was made; only products and convolutions round their inputs.
    """
    precision = str(header.get(MATMUL_PRECISION))
    # The machine's accelerator does not matter for tensors that stayed in the memory of its CPU.
    accelerated = header.get(DEVICES, header.get(DEVICE, "cpu")) != "cpu"
    # Programs for GPUs ask for "high" wherever they run; on a CPU it changes nothing.
    matmul = {"high": FLOAT16 if accelerated else 0.0, "medium": BFLOAT16}.get(precision, 0.0)
    tf32 = accelerated and header.get("torch.cudnn.allow_tf32")
    eps = 0.0
    for op in ops:
        if MATMUL.search(op):
            eps = max(eps, matmul)
        elif CONVOLUTION.search(op) and tf32:
            eps = max(eps, FLOAT16)
    return eps


def header_of(table: Table, row: int) -> Mapping[str, Any]:
    return table.header.get(table.tensors[table.tensor[row]].rank, {})


def kind_of(frontier: Frontier, row: int) -> str:
    """Return the kind, such as "value" or "grad", of the record in a row of A."""
    kind: str = frontier.alignment.a.tensors[frontier.alignment.a.tensor[row]].kind
    return kind
