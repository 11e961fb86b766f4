"""Pairs moved operations, which one run has in a module and the other in a module inside it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name
from anchorlib.operations.stretches import Part, Stretch

__all__ = ["without_moved"]

Key: TypeAlias = tuple[object, ...]


def without_moved(parts: Sequence[Part]) -> list[Part]:
    """Return `parts` with operations that only moved to another module paired as equal.

    A part is a group (a rank, step, pass, stage and module) and a stretch of its operations. A part
    with operations of A alone and a part with operations of B alone become one equal part where
    all of these agree: rank, step, pass, stage and the names of the operations; and where, besides,
    either the results have the same bits, or the modules are the same, or one module lies inside
    the other. The parts with operations of B alone that are left come last.
    """
    waiting = _Waiting([part for part in parts if not part[1].equal and not part[1].a])
    joined = list[Part]()
    for group, block in parts:
        if block.equal or (block.a and block.b):
            joined.append((group, block))
        elif block.a:
            there = waiting.take((group, block))
            moved = block if there is None else Stretch(block.a, there.b, equal=True)
            joined.append((group, moved))
    return joined + waiting.left()


class _Waiting:
    """The parts (a group and a stretch of its operations) that only B has, with an index.

    The index finds the parts that match a part of A. A search through a list would take too long: a
    model whose modules are named differently has thousands of such parts.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = dict(enumerate(parts))
        self._numbers: defaultdict[Key, deque[int]] = defaultdict(deque)
        for number, part in self._parts.items():
            for key in _keys(part):
                self._numbers[_kind(part, part[1].b), key].append(number)

    def take(self, part: Part) -> Stretch | None:
        """Remove the first of B's parts that matches A's `part`, and return its stretch.

        Returns None where no part matches. A part of B matches if `_kind` is the same for both, and
        if its last operation made the same bits as that of `part`, or its module is the module of
        `part`, around that module or inside it.
        """
        kind, group = _kind(part, part[1].a), part[0]
        keys = [*_bits(part[1].a), ("inside", group.module)]
        keys += [("at", outer) for outer in _around(group.module)]
        first = [number for key in keys if (number := self._first((kind, key))) is not None]
        return self._parts.pop(min(first))[1] if first else None

    def left(self) -> list[Part]:
        """Return the parts (stretches of operations) of B that no part of A was paired with."""
        return list(self._parts.values())

    def _first(self, key: Key) -> int | None:
        numbers = self._numbers.get(key, deque())
        while numbers and numbers[0] not in self._parts:
            numbers.popleft()
        return numbers[0] if numbers else None


def _kind(part: Part, ops: Sequence[Op]) -> Key:
    """Return what must agree in two parts: rank, step, pass, stage, and the operations' names.

    part: a group of operations with one of its stretches.
    ops: the operations of the run, A or B, that has any in `part`.
    """
    return (*part[0][:4], *(base_name(op.op) for op in ops))


def _keys(part: Part) -> Iterator[Key]:
    """Yield the keys under which a part that only B has is put into the index.

    They are the digest of its result, if it is known, its module, and each module around that.
    """
    yield from _bits(part[1].b)
    yield "at", part[0].module
    yield from (("inside", outer) for outer in _around(part[0].module))


def _bits(ops: Sequence[Op]) -> Iterator[Key]:
    digest = ops[-1].outputs[0].digest
    if digest is not None:
        yield "bits", digest


def _around(module: str) -> Iterator[str]:
    """Yield the modules around a module, from the inside out; the last is "", the model."""
    while module:
        module = module.rpartition(".")[0]
        yield module
