"""What differs between the operations of two runs: small frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name

__all__ = ["OpAlignment", "OpDifference"]


@dataclass(frozen=True, slots=True)
class OpDifference:
    """Operations that stand in one run alone, or that both ran with other arguments.

    stage, module: where; the module as A calls it.
    a, b: the operations of each run. Of other arguments one each.
    arguments: what the operation was told otherwise, as "approximate none | tanh"; else "".
    inputs_equal, outputs_equal: whether equal bits went in, and came out; None where that is not
        known.
    like_it: the other modules in which the same differs.
    """

    stage: str
    module: str
    a: tuple[Op, ...]
    b: tuple[Op, ...]
    arguments: str = ""
    inputs_equal: bool | None = None
    outputs_equal: bool | None = None
    like_it: tuple[str, ...] = ()

    @property
    def only_a(self) -> tuple[str, ...]:
        """The names of A's operations, as "tanh_backward"."""
        return tuple(base_name(op.op) for op in self.a)

    @property
    def only_b(self) -> tuple[str, ...]:
        """The names of B's operations."""
        return tuple(base_name(op.op) for op in self.b)

    @property
    def decomposed_from(self) -> str:
        """What a compiler made some of them of, "" where no compiler tells."""
        made = {
            base_name(op.origin): None
            for op in (*self.a, *self.b)
            if op.origin and base_name(op.origin) != base_name(op.op)
        }
        return " ".join(made)

    def to_dict(self) -> dict[str, Any]:
        """The contract's JSON."""
        return {
            "stage": self.stage,
            "module": self.module,
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "arguments": self.arguments or None,
            "decomposed_from": self.decomposed_from or None,
            "where": [line or None for line in self.where],
            "inputs_equal": self.inputs_equal,
            "outputs_equal": self.outputs_equal,
            "like_it": list(self.like_it),
        }

    @property
    def where(self) -> tuple[str, str]:
        """The lines of A and of B; "" where a run has none there."""
        return _line(self.a), _line(self.b)


@dataclass(frozen=True, slots=True)
class OpAlignment:
    """The operations of two runs in the steps that both traced.

    matched: how many of A's have a partner of their name in B.
    only_a, only_b: how many have none.
    every: each difference where it stands, in A's order.
    """

    matched: int
    only_a: int
    only_b: int
    every: tuple[OpDifference, ...] = ()

    @property
    def differences(self) -> tuple[OpDifference, ...]:
        """One for each kind of difference, which names the other modules that have it."""
        kinds: dict[tuple[object, ...], list[OpDifference]] = {}
        for one in self.every:
            kind = (one.stage, one.arguments, one.only_a, one.only_b)
            kinds.setdefault(kind, []).append(one)
        return tuple(map(_folded, kinds.values()))

    def to_dict(self) -> dict[str, Any]:
        """The contract's JSON."""
        return {
            "matched": self.matched,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "differences": [one.to_dict() for one in self.differences],
        }


def _folded(alike: Sequence[OpDifference]) -> OpDifference:
    """The one that is most telling, where equal bits go in and others come out, for all."""
    telling = [one for one in alike if one.inputs_equal and one.outputs_equal is False]
    first = (telling or alike)[0]
    modules = dict.fromkeys(one.module for one in alike)
    return replace(first, like_it=tuple(name for name in modules if name != first.module))


def _line(ops: Sequence[Op]) -> str:
    return next((op.where for op in ops if op.where), "")
