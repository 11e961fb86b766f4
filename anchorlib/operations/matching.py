"""Aligns two long lists: finds which entries are equal, in order, in nearly linear time.

Equal ends are cut off first. The rest is divided at entries with a mark that each list has exactly
once (patience diff, with digests as marks). Pieces without such marks are searched for the fewest
edits (E. Myers, An O(ND) difference algorithm, 1986), in time proportional to the number of edits.
Small pieces go to difflib, whose time is quadratic. A piece with too many edits is cut in half,
until it is small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

__all__ = ["Match", "matches"]

SMALL: Final = 1 << 14
"""The largest piece (entries of one list times entries of the other) that goes to difflib."""
EDITS: Final = 200
"""The most edits that are searched for in one piece."""


class Match(NamedTuple):
    """The `size` entries from index `a` of one list equal those from index `b` of the other."""

    a: int
    b: int
    size: int


class Piece(NamedTuple):
    """A range of each list: from i to j of the first, from k to m of the second."""

    i: int
    j: int
    k: int
    m: int


def matches(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    marks: tuple[Sequence[Hashable], Sequence[Hashable]] | None = None,
) -> list[Match]:
    """Return the stretches of equal entries that both lists have, in order and without overlap.

    marks: two lists, with a value (a digest, say) for each entry of `a` and of `b`, which tells the
        entry apart from entries equal to it; a value is None for an entry without such a mark.
        Marks guide the search, but equal entries may have different marks.
    """
    stretches: list[Match] = []
    waiting = [Piece(0, len(a), 0, len(b))]
    while waiting:
        piece = _trimmed(a, b, waiting.pop(), stretches)
        rows, columns = piece.j - piece.i, piece.m - piece.k
        if rows * columns <= SMALL:
            stretches += _each_with_each(a, b, piece) if rows and columns else ()
        elif common := _common_marks(a, b, piece, marks):
            waiting += _divided(piece, common)
        elif (edited := _few_edits(a, b, piece)) is not None:
            stretches += edited
        else:
            middle = Match((piece.i + piece.j) // 2, (piece.k + piece.m) // 2, 0)
            waiting += _divided(piece, [middle])
    return sorted(stretches)


def _trimmed(
    a: Sequence[Hashable], b: Sequence[Hashable], piece: Piece, stretches: list[Match]
) -> Piece:
    """Return the piece (a range of each list) without its equal ends.

    Matches for the equal ends are appended to `stretches`, which this changes in place.
    """
    i, j, k, m = piece
    while i < j and k < m and a[i] == b[k]:
        i, k = i + 1, k + 1
    while i < j and k < m and a[j - 1] == b[m - 1]:
        j, m = j - 1, m - 1
    ends = Match(piece.i, piece.k, i - piece.i), Match(j, m, piece.j - j)
    stretches += [one for one in ends if one.size]
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
    """Return matches of equal entries whose mark each list has exactly once within the piece.

    If the matches come in different orders in the two lists, only the longest series that both
    lists have in the same order is returned. The result is [] if there are no marks.

    piece: a range of each list.
    marks: as for `matches`.
    """
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
    """Return {mark: index in `marks`} of the marks that occur once in `marks[start:stop]`.

    None, which stands for no mark, is left out.
    """
    counted = Counter(marks[start:stop])
    places = range(start, stop)
    return {marks[at]: at for at in places if marks[at] is not None and counted[marks[at]] == 1}


def _rising(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of `places` in which the second numbers rise.

    places: pairs of numbers, sorted by the first numbers.
    """
    lowest: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, (_, value) in enumerate(places):
        length = bisect_left(lowest, value)
        before.append(ends[length - 1] if length else -1)
        lowest[length : length + 1] = [value]
        ends[length : length + 1] = [at]
    rising: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        rising.append(places[at])
        at = before[at]
    return rising[::-1]


def _divided(piece: Piece, common: Sequence[Match]) -> Iterator[Piece]:
    """Yield the pieces (ranges of both lists) into which matches divide a piece.

    A match is not cut out: the piece behind it begins with it.

    common: the matches, in the order of both lists.
    """
    i, k = piece.i, piece.k
    for one in common:
        yield Piece(i, one.a, k, one.b)
        i, k = one.a, one.b
    yield Piece(i, piece.j, k, piece.m)


def _few_edits(a: Sequence[Hashable], b: Sequence[Hashable], piece: Piece) -> list[Match] | None:
    """Return the matches that are left if the fewest edits turn one list into the other.

    An edit removes or adds an entry. Returns None if more than `EDITS` edits are needed.

    piece: the range of each list that is looked at.
    """
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
    """Return the index in the first list from which a diagonal goes on (Myers' algorithm).

    The neighbouring diagonal that got further with one edit less is continued, by one more edit.

    reached: by diagonal, the index in the first list that was reached with one edit less.
    diagonal: an index in the first list less an index in the second.
    edits: the number of edits, this one included.
    """
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
