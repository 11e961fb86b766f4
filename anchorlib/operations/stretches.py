"""Splits two lists of operations into stretches: equal operations, and differences between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from anchorlib.operations.matching import Match, matches
from anchorlib.operations.op import Op
from anchorlib.operations.spelling import base_name

__all__ = ["Group", "Part", "Signature", "Stretch", "blocks"]

Signature: TypeAlias = Callable[[Op], tuple[str, ...]]
Span: TypeAlias = tuple[bool, int, int, int, int]
"""Whether a stretch is equal, its start and stop in A, its start and stop in B."""

_GAP: Final = 2
"""The most equal operations that may lie between two differences which are counted as one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive operations of run A, and the consecutive operations of run B in their place.

    a, b: the operations of run A and of run B; () where one run has none there.
    equal: whether each operation of `a` has the name of the operation at the same position in `b`.
    """

    a: tuple[Op, ...]
    b: tuple[Op, ...]
    equal: bool


class Group(NamedTuple):
    """The coordinates that two operations must share to be aligned with each other.

    For an operation of run B, the step is that of run A, and the module has its name in run A.
    """

    rank: int
    step: int
    pass_index: int
    stage: str
    module: str


Part: TypeAlias = tuple[Group, Stretch]


def blocks(
    a: Sequence[Op], b: Sequence[Op], signatures: tuple[Signature, Signature]
) -> Iterator[Stretch]:
    """Align `a` with `b`: yield all their operations, in order, as stretches that match or differ.

    Two lists of operations whose signatures differ only in their order count as equal: a compiler
    has scheduled them in another order. B's operations are then put in A's order.

    signatures: for A and for B the function that gives an operation's signature: its name and the
        names of the operations that made its inputs.
    """
    for equal, i, j, k, m in _merged(_spans(a, b)):
        one, two = tuple(a[i:j]), tuple(b[k:m])
        names = list(map(signatures[0], one)), list(map(signatures[1], two))
        if not equal and Counter(names[0]) == Counter(names[1]):
            yield Stretch(one, _ordered(two, names[1], names[0]), True)
        else:
            yield Stretch(one, two, equal)


def _names(ops: Sequence[Op]) -> list[str]:
    return [base_name(op.op) for op in ops]


def _spans(a: Sequence[Op], b: Sequence[Op]) -> list[Span]:
    """Align both lists by the operations' names; return stretches of equal and of differing names.

    The stretches cover both lists, in order.
    """
    spans: list[Span] = []
    i = k = 0
    every = matches(_names(a), _names(b), (_bits(a), _bits(b)))
    for one in (*every, Match(len(a), len(b), 0)):
        if i < one.a or k < one.b:
            spans.append((False, i, one.a, k, one.b))
        i, k = one.a + one.size, one.b + one.size
        if one.size and spans and spans[-1][0]:
            spans[-1] = (True, spans[-1][1], i, spans[-1][3], k)
        elif one.size:
            spans.append((True, one.a, i, one.b, k))
    return spans


def _bits(ops: Sequence[Op]) -> list[str | None]:
    """Return the digest of each operation's last output; None where it has no output or digest."""
    return [op.outputs[-1].digest if op.outputs else None for op in ops]


def _merged(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield all stretches, with differences merged that are at most two equal operations apart.

    So `mul sub mul` in place of `tanh_backward` is one difference, even where a `mul` happens to
    have a partner.
    """
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
    """Return the operations `ops`, sorted so that their signatures are in the order of `wanted`.

    own: the signature of each operation in `ops`.
    wanted: the signatures of `own` in another order.
    """
    waiting: defaultdict[tuple[str, ...], list[Op]] = defaultdict(list)
    for op, signature in zip(reversed(ops), reversed(own), strict=True):
        waiting[signature].append(op)
    return tuple(waiting[signature].pop() for signature in wanted)
