"""The differences between the operations of two runs, as frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name

__all__ = ["OpAlignment", "OpDifference"]


@dataclass(frozen=True, slots=True)
class OpDifference:
    """Operations that only one run has, or one operation that the runs called with other arguments.

    stage, module: the stage and the module, by its name in run A, in which the operations ran.
    a, b: the operations of run A and of run B, () for none; one each where only arguments differ.
    arguments: the arguments that differ, A's value first: "approximate none | tanh"; "" where the
        runs have other operations.
    inputs_equal, outputs_equal: whether equal bits went in, and whether equal bits came out; None
        where that is not known.
    like_it: the other modules that have the same difference; filled by `OpAlignment.differences`.
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
        """The short names of the operations of run A, such as "tanh_backward"; () for none."""
        return tuple(base_name(op.op) for op in self.a)

    @property
    def only_b(self) -> tuple[str, ...]:
        """The short names of the operations of run B, such as "tanh_backward"; () for none."""
        return tuple(base_name(op.op) for op in self.b)

    @property
    def decomposed_from(self) -> str:
        """The names of the operations that a compiler decomposed into those of `a` and `b`.

        The names are separated by spaces. "" where nothing was decomposed, or where it is unknown.
        """
        made = {
            base_name(op.origin): None
            for op in (*self.a, *self.b)
            if op.origin and base_name(op.origin) != base_name(op.op)
        }
        return " ".join(made)

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as a dict that JSON can hold, with `None` for "".

        Besides the fields there are only_a and only_b (in place of a and b), decomposed_from and
        where, as the properties give them.
        """
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
        """(line of A, line of B): the first known source line, "PATH:LINE", of their operations.

        "" where a run has no operations or their lines are not known.
        """
        return _line(self.a), _line(self.b)


@dataclass(frozen=True, slots=True)
class OpAlignment:
    """The operations of two runs side by side, in the steps that both traced.

    matched: how many operations of A have a partner of the same name in B.
    only_a, only_b: how many operations of A, and of B, have no partner.
    every: all differences, module by module in the order in which A ran them; operations that only
        B has come last.
    """

    matched: int
    only_a: int
    only_b: int
    every: tuple[OpDifference, ...] = ()

    @property
    def differences(self) -> tuple[OpDifference, ...]:
        """The differences, with one entry for all that agree in stage, operations and arguments.

        The `like_it` of an entry names the other modules that have the same difference.
        """
        kinds: dict[tuple[object, ...], list[OpDifference]] = {}
        for one in self.every:
            kind = (one.stage, one.arguments, one.only_a, one.only_b)
            kinds.setdefault(kind, []).append(one)
        return tuple(map(_folded, kinds.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the alignment as a dict that JSON can hold.

        Its keys: matched, only_a, only_b, and differences (dicts of `OpDifference.to_dict`).
        """
        return {
            "matched": self.matched,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "differences": [one.to_dict() for one in self.differences],
        }


def _folded(alike: Sequence[OpDifference]) -> OpDifference:
    """Return the most telling of `alike`, with the modules of the others in its `like_it`.

    The most telling is the first where equal bits go in and other bits come out, else the first.

    alike: differences that agree in stage, operations and arguments.
    """
    telling = [one for one in alike if one.inputs_equal and one.outputs_equal is False]
    first = (telling or alike)[0]
    modules = dict.fromkeys(one.module for one in alike)
    return replace(first, like_it=tuple(name for name in modules if name != first.module))


def _line(ops: Sequence[Op]) -> str:
    return next((op.where for op in ops if op.where), "")
