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
    """Return up to twelve operations of a step, in order: makers of inputs, `end`, its users.

    ops: the operations of the step and rank of `end`; views and operations without outputs are left
        out.
    parting: the operations that differ from another run. Makers at most three edges back are
        chosen, and edges are counted anew from each operation in `parting`, so that the graphs of
        two runs show the same operations before the runs part.
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
    """Yield the makers of an operation's inputs, then the makers of theirs, and so on, each once.

    drawn: the operations that may be yielded, by index. The search goes back at most `_FAR` edges
    from `end`, and from each operation in `parting` (those that differ from another run).
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
