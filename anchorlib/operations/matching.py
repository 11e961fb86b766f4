"""Which entries of two long lists stand for each other, in order, in nearly linear time.

Equal ends are cut off first. What is left is divided where both lists have the same mark, and have
it once (patience diff, with digests for marks), then searched for the fewest edits (E. Myers, An
O(ND) difference algorithm, 1986), which takes as long as there are edits. Small pieces are given to
difflib, which takes the square, and so are those that are too different for the others, in halves.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

__all__ = ["Match", "matches"]

SMALL: Final = 1 << 14
"""Entries of one list times those of the other that are compared each with each."""
EDITS: Final = 200
"""How many edits are searched for."""


class Match(NamedTuple):
    """`size` entries from `a` on in one list are those from `b` on in the other."""

    a: int
    b: int
    size: int


class Piece(NamedTuple):
    """Start and stop in either list."""

    i: int
    j: int
    k: int
    m: int


def matches(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    marks: tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
) -> list[Match]:
    """What both lists have, in order; no entry twice.

    marks: of each entry what tells it apart from others that are equal to it; None where nothing
        does.
    """
    found: list[Match] = []
    waiting = [Piece(0, len(a), 0, len(b))]
    while waiting:
        piece = _trimmed(a, b, waiting.pop(), found)
        rows, columns = piece.j - piece.i, piece.m - piece.k
        if rows * columns <= SMALL:
            found += _each_with_each(a, b, piece) if rows and columns else ()
        elif common := _common_marks(a, b, piece, marks):
            waiting += _divided(piece, common)
        elif (edited := _few_edits(a, b, piece)) is not None:
            found += edited
        else:
            middle = Match((piece.i + piece.j) // 2, (piece.k + piece.m) // 2, 0)
            waiting += _divided(piece, [middle])
    return sorted(found)


def _trimmed(
    a: Sequence[Hashable], b: Sequence[Hashable], piece: Piece, found: list[Match]
) -> Piece:
    """A piece without what is equal at both of its ends, which is added to `found`."""
    i, j, k, m = piece
    while i < j and k < m and a[i] == b[k]:
        i, k = i + 1, k + 1
    while i < j and k < m and a[j - 1] == b[m - 1]:
        j, m = j - 1, m - 1
    ends = Match(piece.i, piece.k, i - piece.i), Match(j, m, piece.j - j)
    found += [one for one in ends if one.size]
    return Piece(i, j, k, m)


def _each_with_each(a: Sequence[Hashable], b: Sequence[Hashable], piece: Piece) -> Iterator[Match]:
    i, j, k, m = piece
    matcher = SequenceMatcher(None, a[i:j], b[k:m], autojunk=False)
    for x, y, size in matcher.get_matching_blocks():
        if size:
            yield Match(i + x, k + y, size)


def _common_marks(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    piece: Piece,
    marks: tuple[Sequence[Hashable], Sequence[Hashable]] | None,
) -> list[Match]:
    """Equal entries of a mark that either piece has once; the most of them that are in order."""
    if marks is None:
        return []
    ours = _single(marks[0], piece.i, piece.j)
    theirs = _single(marks[1], piece.k, piece.m)
    places = [
        (place, theirs[mark])
        for mark, place in ours.items()
        if mark in theirs and a[place] == b[theirs[mark]]
    ]
    return [Match(*one, 1) for one in _rising(sorted(places))]


def _single(marks: Sequence[Hashable], start: int, stop: int) -> dict[Hashable, int]:
    """Where those marks are that stand once in this stretch."""
    counted = Counter(marks[start:stop])
    places = range(start, stop)
    return {marks[at]: at for at in places if marks[at] is not None and counted[marks[at]] == 1}


def _rising(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of these, which rise in the first number, that rises in the second too."""
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, (_, value) in enumerate(places):
        length = bisect_left(lowest, value)
        before.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [value]
        ends[length : length + 1] = [at]
    found: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        found.append(places[at])
        at = before[at]
    return found[::-1]


def _divided(piece: Piece, common: Sequence[Match]) -> Iterator[Piece]:
    """The pieces between these matches; each match begins the piece behind it."""
    i, k = piece.i, piece.k
    for one in common:
        yield Piece(i, one.a, k, one.b)
        i, k = one.a, one.b
    yield Piece(i, piece.j, k, piece.m)


def _few_edits(a: Sequence[Hashable], b: Sequence[Hashable], piece: Piece) -> list[Match] | None:
    """The matches that the fewest edits leave; None where there are more than `EDITS`."""
    rows, columns = piece.j - piece.i, piece.m - piece.k
    reached = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(EDITS, rows + columns) + 1):
        history.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            x = _start(reached, diagonal, edits)
            y = x - diagonal
            while x < rows and y < columns and a[piece.i + x] == b[piece.k + y]:
                x, y = x + 1, y + 1
            reached[diagonal] = x
            if x >= rows and y >= columns:
                return list(_walked_back(history, rows, columns, piece))
    return None


def _start(reached: dict[int, int], diagonal: int, edits: int) -> int:
    """Where the further of the two neighbours gets to `diagonal` by one more edit."""
    left, right = reached.get(diagonal - 1, -1), reached.get(diagonal + 1, -1)
    if diagonal == -edits or (diagonal != edits and left < right):
        return right
    return left + 1


def _walked_back(
    history: Sequence[dict[int, int]], rows: int, columns: int, piece: Piece
) -> Iterator[Match]:
    x, y = rows, columns
    for edits in range(len(history) - 1, -1, -1):
        diagonal = x - y
        start = max(_start(history[edits], diagonal, edits), 0)
        if x > start:
            yield Match(piece.i + start, piece.k + start - diagonal, x - start)
        came_down = diagonal == -edits or (
            diagonal != edits
            and history[edits].get(diagonal - 1, -1) < history[edits].get(diagonal + 1, -1)
        )
        x, y = (start, start - diagonal - 1) if came_down else (start - 1, start - diagonal)
