"""The operands of one traced operation inside an origin, wherever a run kept their values.

Where several operations lie between an origin and its recorded parents, the traces say which of
them parted the runs: equal bits went in, and other bits came out. Its tensors are found by their
digests, among the values that `trace(values=...)` kept and among all other records. A digest is
that of the bits, so that a tensor which one run kept stands for the equal one of the other run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from anchorlib.diagnosis.judgement import Origin, Way
from anchorlib.diagnosis.pairing import Table
from anchorlib.diagnosis.recomputation.operands import MOST_ELEMENTS, Operand, Operands, values_at
from anchorlib.errors import UnknownTensorError, ValuesNotKeptError
from anchorlib.operations import Op, base_name, kept_as, kept_name
from anchorlib.operations import Operand as Traced
from anchorlib.reading import Run

__all__ = ["Parting", "partings"]

Array = np.ndarray[Any, Any]
Ops: TypeAlias = Sequence[Op]
OWN: Final = "x"
GRADIENTS: Final = ("grad_output", "grad_out")
WEIGHTS: Final = ("weight", "bias")
PRODUCTS: Final = ("mm", "addmm")


class Parting(NamedTuple):
    """An operation that parts two runs, with all that is needed to compute it again.

    op: the operation. told: its operands in both runs. also: the operations of the other run in its
    place.
    """

    op: Op
    told: Operands
    also: Ops


def partings(origin: Origin, tables: tuple[Table, Table]) -> Iterator[Parting]:
    """The operations inside an origin at which the runs part, as far as their values are known.

    tables: A's and B's records.
    """
    way = origin.way
    if way is None:
        return
    values = _Values(way, tables)
    for pair in _candidates(origin, way):
        for lead in (0, 1):
            if len(pair[lead]) == 1:
                told = _operands(pair, lead, values)
                if told is not None:
                    yield Parting(pair[lead][0], told, pair[1 - lead])


def _candidates(origin: Origin, way: Way) -> Iterator[tuple[Ops, Ops]]:
    """Operations of A and those of B in their place, of which other bits came than of those.

    First those that one run alone ran, then those that both ran with another result.
    """
    for one in origin.differences:
        if one.a and one.b and one.outputs_equal is not True:
            yield one.a, one.b
    if [op.op for op in way.a] == [op.op for op in way.b]:
        for a, b in zip(way.a, way.b, strict=True):
            came = _digests(a.outputs) == _digests(b.outputs)
            if not came and _digests(a.inputs) == _digests(b.inputs):
                yield (a,), (b,)


def _digests(operands: Sequence[Traced]) -> list[str | None]:
    return [one.digest for one in operands]


class _Values:
    """Finds values by digest: those that were kept of operations, then those of other records."""

    def __init__(self, way: Way, tables: tuple[Table, Table]) -> None:
        self._tables = tables
        self._places: dict[str, list[tuple[Run, Op, str]]] = {}
        for run, ops in zip(way.runs, way.steps, strict=True):
            for op in ops:
                for kind, one in kept_as(op):
                    if one.digest is not None:
                        self._places.setdefault(one.digest, []).append((run, op, kind))

    def find(self, one: Traced) -> Array | None:
        """The values of a tensor, decoded; None where neither run has kept them."""
        if one.digest is None or math.prod(one.shape) > MOST_ELEMENTS:
            return None
        for run, op, kind in self._places.get(one.digest, ()):
            values = _kept(run, op, kind, one.digest)
            if values is not None:
                return values
        halves = [int(one.digest[:16], 16), int(one.digest[16:], 16)]
        for table in self._tables:
            same = (table.digest == np.array(halves, np.uint64)).all(axis=1) & table.kept
            for row in np.flatnonzero(same).tolist():
                shape, dtype = table.shapes[table.shape[row]], table.dtypes[table.dtype[row]]
                if (tuple(shape), dtype) == (one.shape, one.dtype):
                    return values_at(table, row, one.shape, one.dtype)
        return None


def _kept(run: Run, op: Op, kind: str, digest: str) -> Array | None:
    """The values of a tensor of an operation, where `trace(values=...)` kept them in this run."""
    try:
        series = run.series(kept_name(op.module, op.op), kind, rank=op.rank)
        same = (series.columns["digest"] == digest) & (series.columns["step"] == op.step)
        rows = np.flatnonzero(same)
        return series.record(int(rows[0])).array if len(rows) else None
    except (UnknownTensorError, ValuesNotKeptError):
        return None


def _operands(pair: tuple[Ops, Ops], lead: int, values: _Values) -> Operands | None:
    """The operands of the one operation that run `lead` (0: A) ran, as both runs had them."""
    op, others = pair[lead][0], pair[1 - lead]
    own = _output(op.outputs[:1], others[-1].outputs)
    inputs = [_partner(one, op, others) for one in op.inputs]
    if own is None or None in inputs:
        return None
    taken = [_operand(one, lead, values) for one in (own, *inputs) if one is not None]
    if None in taken:
        return None
    first, *rest = [one for one in taken if one is not None]
    gradient = base_name(op.op).endswith(("_backward", "_backward_data"))
    return _placed(base_name(op.op), replace(first, name=OWN), rest, gradient=gradient)


_Pair: TypeAlias = tuple[Traced, Traced]
"""A tensor in the run that ran the one operation, and in the other run."""


def _output(made: Sequence[Traced], others: Sequence[Traced]) -> _Pair | None:
    for one in made:
        for other in others:
            if (one.shape, one.dtype) == (other.shape, other.dtype):
                return one, other
    return None


def _partner(one: Traced, op: Op, others: Ops) -> _Pair | None:
    """An input with the tensor that it is in the other run.

    The input of the same name of the same operation; of other operations one with the same bits.
    """
    same = len(others) == 1 and base_name(others[0].op) == base_name(op.op)
    for other in (taken for each in others for taken in each.inputs):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            continue
        if one.argument == other.argument if same else one.digest == other.digest is not None:
            return one, other
    return None


def _operand(pair: _Pair, lead: int, values: _Values) -> Operand | None:
    """A tensor of both runs under its argument's name; None where its values are not known."""
    mine, others = values.find(pair[0]), values.find(pair[1])
    if mine is None or others is None:
        return None
    arrays = {"ab"[lead]: mine, "ba"[lead]: others}
    one = pair[0]
    return Operand(one.argument, "value", one.shape, one.dtype, lambda side: arrays[side])


def _placed(op: str, own: Operand, given: Sequence[Operand], *, gradient: bool) -> Operands:
    """The operands in the places where the rules look for them."""
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
    """An input's name: that of the record itself for the tensor whose gradient that is."""
    return OWN if argument in ("self", "input") else argument


def _as_linear(one: Operand) -> Operand:
    """An argument of `mm` or `addmm` as the rule of `nn.Linear` takes it: x, weightᵀ or bias."""
    if one.name == "mat2":
        shape = (one.shape[1], one.shape[0])
        return replace(one, name="weight", shape=shape, read=lambda side: one.read(side).T)
    return replace(one, name="bias") if one.name == "self" and len(one.shape) == 1 else one
