"""Two lists of operations as blocks: runs of operations that both have, and what stands between."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from anchorlib.operations.matching import Match, matches
from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name

__all__ = ["Block", "Group", "Part", "Signature", "blocks"]

Signature: TypeAlias = Callable[[Op], tuple[str, ...]]
Span: TypeAlias = tuple[bool, int, int, int, int]
"""Whether it is equal, A's start and stop, B's start and stop."""

_GAP: Final = 2
"""Equal operations between two differences that are one difference all the same."""


@dataclass(frozen=True, slots=True)
class Block:
    """Operations of A, and those of B that stand for them.

    equal: whether they have the same names, one after the other.
    """

    a: tuple[Op, ...]
    b: tuple[Op, ...]
    equal: bool


class Group(NamedTuple):
    """Where operations are aligned, as A counts steps and calls modules."""

    rank: int
    step: int
    pass_index: int
    stage: str
    module: str


Part: TypeAlias = tuple[Group, Block]


def blocks(
    a: Sequence[Op], b: Sequence[Op], signatures: tuple[Signature, Signature]
) -> Iterator[Block]:
    """All of `a` and of `b`, in order.

    signatures: an operation's name and what it works on, of A's and of B's. Where two stretches
        have the same ones in another order, a compiler scheduled them otherwise: they are equal.
    """
    for equal, i, j, k, m in _merged(_spans(a, b)):
        one, two = tuple(a[i:j]), tuple(b[k:m])
        told = list(map(signatures[0], one)), list(map(signatures[1], two))
        if not equal and Counter(told[0]) == Counter(told[1]):
            yield Block(one, _ordered(two, told[1], told[0]), True)
        else:
            yield Block(one, two, equal)


def _names(ops: Sequence[Op]) -> list[str]:
    return [base_name(op.op) for op in ops]


def _spans(a: Sequence[Op], b: Sequence[Op]) -> list[Span]:
    """All of both, in order: stretches of the same names, and what stands between them."""
    found: list[Span] = []
    i = k = 0
    every = matches(_names(a), _names(b), (_bits(a), _bits(b)))
    for one in (*every, Match(len(a), len(b), 0)):
        if i < one.a or k < one.b:
            found.append((False, i, one.a, k, one.b))
        i, k = one.a + one.size, one.b + one.size
        if one.size and found and found[-1][0]:
            found[-1] = (True, found[-1][1], i, found[-1][3], k)
        elif one.size:
            found.append((True, one.a, i, one.b, k))
    return found


def _bits(ops: Sequence[Op]) -> list[str | None]:
    """The digest of what each made last, or nothing."""
    return [op.outputs[-1].digest if op.outputs else None for op in ops]


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
    """Differences that few equal operations part become one: mul sub mul for tanh_backward."""
    held: list[Span] = []
    for at, span in enumerate(spans):
        inside = 0 < at < len(spans) - 1 and span[2] - span[1] <= _GAP
        if span[0] and not (held and inside):
            if held:
                yield _joined(held)
            held = []
            yield span
        else:
            held.append(span)
    if held:
        yield _joined(held)


def _joined(held: Sequence[Span]) -> Span:
    first, last = held[0], held[-1]
    return (False, first[1], last[2], first[3], last[4])


def _ordered(
    ops: Sequence[Op], own: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]
) -> tuple[Op, ...]:
    """Operations of these signatures in the order of other ones, which are the same in number."""
    waiting: defaultdict[tuple[str, ...], list[Op]] = defaultdict(list)
    for op, signature in zip(reversed(ops), reversed(own), strict=True):
        waiting[signature].append(op)
    return tuple(waiting[signature].pop() for signature in wanted)
