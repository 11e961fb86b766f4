"""Finds which operation made a record: the one with an output whose digest the record has.

No name is guessed. Several outputs may have the same bits (views, constants). Then an operation is
preferred, in this order, if it belongs to the stage which makes records of this kind, if it is not
a view, if it ran in the record's pass, and if the record is named after its module. If several are
left the first is taken. For a gradient that was accumulated, or that an optimizer consumed, the
last is taken, since such gradients are summed, scaled and clipped in place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from anchorlib.names import is_operand_kind
from anchorlib.operations.kept import kept_as, kept_name
from anchorlib.operations.op import Op

__all__ = ["RecordMakers", "segment"]

_MAKING: Final = {
    "value": ("forward",),
    "grad": ("backward", "accumulate", "optimizer"),
    "pass_grad": ("backward", "accumulate"),
    "updated": ("optimizer",),
}
_OPTIMIZER: Final = ("optimizer",)


class RecordMakers:
    """Finds which operation of a rank made a recorded tensor."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._made: defaultdict[tuple[str, tuple[int, ...]], list[Op]] = defaultdict(list)
        self._steps: defaultdict[int, list[Op]] = defaultdict(list)
        for op in ops:
            self._steps[op.step].append(op)
            for operand in op.outputs:
                if operand.digest is not None:
                    self._made[operand.digest, operand.shape].append(op)

    def maker(  # the arguments identify a record
        self,
        name: str,
        kind: str,
        digest: str,
        shape: tuple[int, ...],
        *,
        step: int,
        pass_index: int = 0,
    ) -> Op | None:
        """Return the operation that made a record of this name, kind and digest; None if unknown.

        A value that no operation of its step made, such as a parameter's, was made by the last
        operation of an earlier step that has the value as an output: for a parameter, by the
        optimizer's. For a record of an operation's own tensor (`trace(values=...)`), the operation
        itself is returned, whether the tensor is an input or an output. The result is also None for
        a step that was not traced.

        digest, shape: the digest and the shape of the record's tensor.
        step, pass_index: the step of the record, and its pass within the step.
        """
        if step not in self._steps:
            return None
        if is_operand_kind(kind):
            return self._keeper(name, kind, digest, step, pass_index)
        makers = self._made.get((digest, shape), [])
        here = [op for op in makers if op.step == step]
        if kind == "value" and not here:
            here = [op for op in makers if op.step < step][-1:]
        stages = _MAKING.get(kind, _OPTIMIZER)
        last = kind == "grad" and any(op.stage in ("accumulate", "optimizer") for op in here)

        def rank(op: Op) -> tuple[bool, ...]:
            return (
                op.stage in stages,
                not op.view,
                op.pass_index == pass_index or op.stage == "optimizer",
                op.module == name or name.startswith(f"{op.module}."),
            )

        return max(reversed(here) if last else here, key=rank, default=None)

    def _keeper(self, name: str, kind: str, digest: str, step: int, pass_index: int) -> Op | None:
        """Return the operation whose input or output a record of `trace(values=...)` holds.

        None where no operation of the step has such a tensor. The arguments are those of `maker`.
        """
        keepers = [
            op
            for op in self._steps[step]
            if kept_name(op.module, op.op) == name
            and any((of, one.digest) == (kind, digest) for of, one in kept_as(op))
        ]
        return max(keepers, key=lambda op: op.pass_index == pass_index, default=None)


def segment(ops: Iterable[Op], end: Op, stops: Iterable[Op]) -> list[Op]:
    """Return the operations from which `end` was computed, in order, up to `end` itself.

    They are the operations that made the inputs of `end`, those that made their inputs, and so on
    back to the operations in `stops`, which are not part of the result. Views, and operations
    without outputs, are left out of the result.

    ops: the operations of one step and rank.
    """
    known = {op.index: op for op in ops}  # where a log lost operations, indices are missing
    stopping = {op.index for op in stops} - {end.index}
    seen: set[int] = set()
    todo = [end.index]
    while todo:
        index = todo.pop()
        if index in seen or index in stopping or index not in known:
            continue
        seen.add(index)
        todo += [one for one in known[index].producers if one is not None]
    return [op for op in (known[index] for index in sorted(seen)) if _computes(op)]


def _computes(op: Op) -> bool:
    """Return whether an operation has outputs and is no view, so that it makes new bits."""
    return bool(op.outputs) and not op.view
