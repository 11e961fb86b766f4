"""The few operations around one: what it was made from, nearest first, and what takes from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Final

from anchorlib.graphs.graph import Place, place_of
from anchorlib.operations import Op

__all__ = ["around"]

_BEFORE: Final = 9
_AFTER: Final = 3
_FAR: Final = 3  # operations between what differs and the last of its makers that is shown


def around(ops: Sequence[Op], end: Op, parting: Container[Place] = ()) -> list[Op]:
    """At most a dozen operations of a step, in order: `end`, makers before it, takers after it.

    ops: those of the step of `end`, of its rank. parting: those that differ from another run; what
    made them counts as near, so that two runs show the same operations before they part.
    """
    drawn = {op.index: op for op in ops if op.outputs and not op.view}
    found = {end.index: end}
    for op in _makers(drawn, end, parting):
        found[op.index] = op
        if len(found) == _BEFORE:
            break
    takers = (op for op in drawn.values() if op.index > end.index and end.index in op.producers)
    for op in list(takers)[:_AFTER]:
        found[op.index] = op
    return [found[index] for index in sorted(found)]


def _makers(drawn: dict[int, Op], end: Op, parting: Container[Place]) -> Iterator[Op]:
    """What made an operation's inputs, what made theirs, and so on, each once."""
    seen, todo = {end.index}, deque([(end, 0)])
    while todo:
        op, far = todo.popleft()
        far = 0 if place_of(op) in parting else far
        if far == _FAR:
            continue
        for index in op.producers:
            # A log that somebody else wrote may name a maker that came later.
            if index is None or index in seen or index >= op.index or index not in drawn:
                continue
            seen.add(index)
            todo.append((drawn[index], far + 1))
            yield drawn[index]
