"""Chooses the few operations around a given one: those that made its inputs or use its outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Final

from anchorlib.operations import Op, OpKey, op_key

__all__ = ["ops_around"]

_BEFORE: Final = 9
_AFTER: Final = 3
_FAR: Final = 3  # edges from an operation that differs back to the farthest maker that is shown


def ops_around(ops: Sequence[Op], end: Op, parting: Container[OpKey] = ()) -> list[Op]:
    """Return `end` with at most eight operations that lead to it and three that use its outputs.

    The operations come in the order in which they ran. An operation leads to `end` if it made an
    input of `end`, or an input of such an operation, at most three edges back.

    ops: the operations of the step and rank of `end`; views and operations without outputs are
        skipped.
    parting: the keys (`op_key`) of operations that differ from another run. Edges are counted anew
        from each of these, so that the graphs of two runs show the same operations before the runs
        part.
    """
    drawn = {op.index: op for op in ops if op.outputs and not op.view}
    near = {end.index: end}
    for op in _makers(drawn, end, parting):
        near[op.index] = op
        if len(near) == _BEFORE:
            break
    takers = (op for op in drawn.values() if op.index > end.index and end.index in op.producers)
    for op in list(takers)[:_AFTER]:
        near[op.index] = op
    return [near[index] for index in sorted(near)]


def _makers(drawn: dict[int, Op], end: Op, parting: Container[OpKey]) -> Iterator[Op]:
    """Yield the operations that made inputs of `end`, then those that made their inputs, and so on.

    Each operation is yielded once. The search goes back at most `_FAR` edges from `end`, and from
    each operation in `parting`.

    drawn: the operations that may be yielded, by their index in the step.
    parting: the keys of operations that differ from another run.
    """
    seen, todo = {end.index}, deque([(end, 0)])
    while todo:
        op, far = todo.popleft()
        far = 0 if op_key(op) in parting else far
        if far == _FAR:
            continue
        for index in op.producers:
            # A log from elsewhere may name a maker that ran later than its taker.
            if index is None or index in seen or index >= op.index or index not in drawn:
                continue
            seen.add(index)
            todo.append((drawn[index], far + 1))
            yield drawn[index]
