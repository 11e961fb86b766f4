"""The operands of one traced operation inside an origin, wherever a run kept their values.

Where several operations lie between an origin and its recorded parents, the traces show which of
these operations parted the runs: equal bits went into it, and different bits came out. Its tensors
are found by their digests, among the values that `trace(values=...)` kept and among all other
records. For operations that one run alone ran, equal inputs are not required. Equal digests mean
equal bits, so that a tensor which one run kept stands for the equal tensor of the other run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from anchorlib.diagnosis.judgement import Origin, TracedPath
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.recomputation.operands import (
    MOST_ELEMENTS,
    Operands,
    StoredOperand,
    values_at,
)
from anchorlib.errors import UnknownTensorError, ValuesNotKeptError
from anchorlib.operations import Op, base_name, kept_as, kept_name
from anchorlib.operations import Operand as TracedOperand
from anchorlib.reading import Run

__all__ = ["OpDivergence", "partings"]

Array = np.ndarray[Any, Any]
Ops: TypeAlias = Sequence[Op]
OWN: Final = "x"
GRADIENTS: Final = ("grad_output", "grad_out")
WEIGHTS: Final = ("weight", "bias")
PRODUCTS: Final = ("mm", "addmm")


class OpDivergence(NamedTuple):
    """One traced operation at which two runs part, with all that is needed to compute it again.

    op: the operation, as one of the runs ran it. operands: its operands in both runs.
    also: the operations, one or more, by which the other run computed what `op` computes.
    """

    op: Op
    operands: Operands
    also: Ops


def partings(origin: Origin, tables: tuple[Table, Table]) -> Iterator[OpDivergence]:
    """Yield the operations inside an origin at which the runs part, if their values are known.

    tables: A's and B's records. Nothing is yielded for an origin whose operations were not traced.
    """
    path = origin.path
    if path is None:
        return
    values = _Values(path, tables)
    for pair in _candidates(origin, path):
        for lead in (0, 1):
            if len(pair[lead]) == 1:
                operands = _operands(pair, lead, values)
                if operands is not None:
                    yield OpDivergence(pair[lead][0], operands, pair[1 - lead])


def _candidates(origin: Origin, path: TracedPath) -> Iterator[tuple[Ops, Ops]]:
    """Yield operations of A together with B's operations that compute the same, where runs part.

    First come A's operations in whose place B ran others, or ran them with other arguments, unless
    their results are known to be equal; their inputs are not compared. Then, if both runs ran the
    same operations throughout, come those that turn equal bits into different bits.
    """
    for difference in origin.differences:
        if difference.a and difference.b and difference.outputs_equal is not True:
            yield difference.a, difference.b
    if [op.op for op in path.a] == [op.op for op in path.b]:
        for a, b in zip(path.a, path.b, strict=True):
            came = _digests(a.outputs) == _digests(b.outputs)
            if not came and _digests(a.inputs) == _digests(b.inputs):
                yield (a,), (b,)


def _digests(operands: Sequence[TracedOperand]) -> list[str | None]:
    return [operand.digest for operand in operands]


class _Values:
    """Finds the values of a tensor by its digest: those that traces kept, else those of records."""

    def __init__(self, path: TracedPath, tables: tuple[Table, Table]) -> None:
        self._tables = tables
        self._places: dict[str, list[tuple[Run, Op, str]]] = {}
        for run, ops in zip(path.runs, path.steps, strict=True):
            for op in ops:
                for kind, operand in kept_as(op):
                    if operand.digest is not None:
                        self._places.setdefault(operand.digest, []).append((run, op, kind))

    def find(self, tensor: TracedOperand) -> Array | None:
        """Return the values of a tensor, decoded; None where neither run has kept them.

        None, too, for a tensor without a digest, or with more than MOST_ELEMENTS elements.
        """
        if tensor.digest is None or math.prod(tensor.shape) > MOST_ELEMENTS:
            return None
        for run, op, kind in self._places.get(tensor.digest, ()):
            values = _kept(run, op, kind, tensor.digest)
            if values is not None:
                return values
        halves = [int(tensor.digest[:16], 16), int(tensor.digest[16:], 16)]
        for table in self._tables:
            rows_of_digest = (table.digest == np.array(halves, np.uint64)).all(axis=1) & table.kept
            for row in np.flatnonzero(rows_of_digest).tolist():
                shape, dtype = table.shapes[table.shape[row]], table.dtypes[table.dtype[row]]
                if (tuple(shape), dtype) == (tensor.shape, tensor.dtype):
                    return values_at(table, row, tensor.shape, tensor.dtype)
        return None


def _kept(run: Run, op: Op, kind: str, digest: str) -> Array | None:
    """Return the values that `trace(values=...)` kept of a tensor of an operation in this run.

    None where they were not kept. kind: the kind under which they were recorded. digest: the
    tensor's digest.
    """
    try:
        series = run.series(kept_name(op.module, op.op), kind, rank=op.rank)
        matching = (series.columns["digest"] == digest) & (series.columns["step"] == op.step)
        rows = np.flatnonzero(matching)
        return series.record(int(rows[0])).array if len(rows) else None
    except (UnknownTensorError, ValuesNotKeptError):
        return None


def _operands(pair: tuple[Ops, Ops], lead: int, values: _Values) -> Operands | None:
    """Return the operands of the one operation of run `lead`, with the values of both runs.

    pair: the operations of A, and those of B that compute the same; run `lead` (0: A, 1: B) has one
    of them alone. None where the values of an operand are not known.
    """
    op, others = pair[lead][0], pair[1 - lead]
    own = _output(op.outputs[:1], others[-1].outputs)
    inputs = [_partner(operand, op, others) for operand in op.inputs]
    if own is None or None in inputs:
        return None
    taken = [_operand(one, lead, values) for one in (own, *inputs) if one is not None]
    if None in taken:
        return None
    first, *rest = [one for one in taken if one is not None]
    gradient = base_name(op.op).endswith(("_backward", "_backward_data"))
    return _placed(base_name(op.op), replace(first, name=OWN), rest, gradient=gradient)


_Pair: TypeAlias = tuple[TracedOperand, TracedOperand]
"""A tensor in the run that ran the one operation, and in the other run."""


def _output(made: Sequence[TracedOperand], others: Sequence[TracedOperand]) -> _Pair | None:
    for result in made:
        for other in others:
            if (result.shape, result.dtype) == (other.shape, other.dtype):
                return result, other
    return None


def _partner(tensor: TracedOperand, op: Op, others: Ops) -> _Pair | None:
    """Return an operation's input `tensor` with the other run's input that matches it, or None.

    The matching input has equal shape and dtype. If the other run has a single operation, of the
    same name, the match is the input for the same argument; otherwise it is an input with equal
    bits.
    op: the operation. others: the operations of the other run that compute the same.
    """
    of_one_operation = len(others) == 1 and base_name(others[0].op) == base_name(op.op)
    for other in (taken for each in others for taken in each.inputs):
        if (tensor.shape, tensor.dtype) != (other.shape, other.dtype):
            continue
        if (
            tensor.argument == other.argument
            if of_one_operation
            else tensor.digest == other.digest is not None
        ):
            return tensor, other
    return None


def _operand(pair: _Pair, lead: int, values: _Values) -> StoredOperand | None:
    """Return a tensor of both runs as an operand, named by its argument.

    None if its values are missing in a run. lead: the run (0: A, 1: B) that `pair` has first.
    """
    mine, others = values.find(pair[0]), values.find(pair[1])
    if mine is None or others is None:
        return None
    arrays = {"ab"[lead]: mine, "ba"[lead]: others}
    one = pair[0]
    return StoredOperand(one.argument, "value", one.shape, one.dtype, lambda side: arrays[side])


def _placed(
    op: str, own: StoredOperand, given: Sequence[StoredOperand], *, gradient: bool
) -> Operands:
    """Return the operands in the fields of `Operands` in which the rules look for them.

    op: the operation's name. own: its result. given: its inputs, named by their arguments.
    gradient: whether the operation computes a gradient.
    """
    if op in PRODUCTS:
        given = [_as_linear(one) for one in given]
    named = {one.name: one for one in given}
    inputs = [one for one in given if one.name not in (*GRADIENTS, "output", *WEIGHTS)]
    return Operands(
        own=replace(own, kind="grad" if gradient else "value"),
        child=next((named[name] for name in GRADIENTS if name in named), None),
        output=named.get("output"),
        inputs=tuple(replace(one, name=_input(one.name)) for one in inputs),
        weights=tuple(named[name] for name in WEIGHTS if name in named),
    )


def _input(argument: str) -> str:
    """Return the name of an operation's input: OWN for the arguments `self` and `input`.

    The gradient of these is what a backward computes. Other inputs have their argument's name.
    """
    return OWN if argument in ("self", "input") else argument


def _as_linear(argument: StoredOperand) -> StoredOperand:
    """Return an argument of `mm` or `addmm` as the rule of `nn.Linear` takes it.

    `mat2` becomes the weight, transposed; a vector `self` becomes the bias; any other argument is
    returned as it is.
    """
    if argument.name == "mat2":
        shape = (argument.shape[1], argument.shape[0])
        return replace(
            argument, name="weight", shape=shape, read=lambda side: argument.read(side).T
        )
    return (
        replace(argument, name="bias")
        if argument.name == "self" and len(argument.shape) == 1
        else argument
    )
