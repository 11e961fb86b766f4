"""Operations that one run has in a module and the other in a module inside it: they have moved."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from anchorlib.operations.blocks import Block, Part
from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name

__all__ = ["without_moved"]

Key: TypeAlias = tuple[object, ...]


def without_moved(parts: Sequence[Part]) -> list[Part]:
    """The parts, where what A has in one module and B in another are partners of each other."""
    waiting = _Waiting([part for part in parts if not part[1].equal and not part[1].a])
    found = list[Part]()
    for group, block in parts:
        if block.equal or (block.a and block.b):
            found.append((group, block))
        elif block.a:
            there = waiting.take((group, block))
            moved = block if there is None else Block(block.a, there.b, equal=True)
            found.append((group, moved))
    return found + waiting.left()


class _Waiting:
    """What B alone ran, by what finds it: a model that is called otherwise has thousands of it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = dict(enumerate(parts))
        self._found: defaultdict[Key, deque[int]] = defaultdict(deque)
        for number, part in self._parts.items():
            for key in _keys(part):
                self._found[_kind(part, part[1].b), key].append(number)

    def take(self, part: Part) -> Block | None:
        """The first that has what A has in `part`: its bits, or in a module around or inside."""
        kind, group = _kind(part, part[1].a), part[0]
        keys = [*_bits(part[1].a), ("inside", group.module)]
        keys += [("at", outer) for outer in _around(group.module)]
        first = [number for key in keys if (number := self._first((kind, key))) is not None]
        return self._parts.pop(min(first))[1] if first else None

    def left(self) -> list[Part]:
        """Those that nobody took."""
        return list(self._parts.values())

    def _first(self, key: Key) -> int | None:
        numbers = self._found.get(key, deque())
        while numbers and numbers[0] not in self._parts:
            numbers.popleft()
        return numbers[0] if numbers else None


def _kind(part: Part, ops: Sequence[Op]) -> Key:
    """What must be the same of both: all but the module, and the names of the operations."""
    return (*part[0][:4], *(base_name(op.op) for op in ops))


def _keys(part: Part) -> Iterator[Key]:
    """What finds operations of B: their bits, their module, and the modules around it."""
    yield from _bits(part[1].b)
    yield "at", part[0].module
    yield from (("inside", outer) for outer in _around(part[0].module))


def _bits(ops: Sequence[Op]) -> Iterator[Key]:
    digest = ops[-1].outputs[0].digest
    if digest is not None:
        yield "bits", digest


def _around(module: str) -> Iterator[str]:
    """The modules that a module lies in, the unnamed one last."""
    while module:
        module = module.rpartition(".")[0]
        yield module
