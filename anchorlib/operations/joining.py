"""Which operation made a record: the one whose output has the record's digest.

No names are guessed. Where several outputs have the same bits (views, constants), the operation
counts that computes, in the record's own pass, in the stage that makes records of its kind, in the
module that the record is named after; and of those the first, but of gradients that an optimizer
consumes the last, since they are summed, scaled and clipped in place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from anchorlib.operations.op import Op

__all__ = ["Joined", "segment"]

_MAKING: Final = {
    "value": ("forward",),
    "grad": ("backward", "accumulate", "optimizer"),
    "pass_grad": ("backward", "accumulate"),
    "updated": ("optimizer",),
}
_OPTIMIZER: Final = ("optimizer",)


class Joined:
    """The operations of one rank, to be found by what they made."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._made: defaultdict[tuple[str, tuple[int, ...]], list[Op]] = defaultdict(list)
        self._steps: set[int] = set()
        for op in ops:
            self._steps.add(op.step)
            for operand in op.outputs:
                if operand.digest is not None:
                    self._made[operand.digest, operand.shape].append(op)

    def maker(  # what a record is
        self,
        name: str,
        kind: str,
        digest: str,
        shape: tuple[int, ...],
        *,
        step: int,
        pass_index: int = 0,
    ) -> Op | None:
        """The operation that made such a record; None where none was traced.

        A parameter's value was made where an optimizer wrote it, in a step before.
        """
        if step not in self._steps:
            return None
        found = self._made.get((digest, shape), [])
        here = [op for op in found if op.step == step]
        if kind == "value" and not here:
            here = [op for op in found if op.step < step][-1:]
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


def segment(ops: Iterable[Op], end: Op, stops: Iterable[Op]) -> list[Op]:
    """The operations between `stops` and `end` by producers, `end` with them, views left out.

    ops: those of one step and rank.
    """
    known = {op.index: op for op in ops}  # a log that lost some of them has places without any
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
    """Whether an operation makes bits of its own; detaching and viewing do not."""
    return bool(op.outputs) and not op.view
