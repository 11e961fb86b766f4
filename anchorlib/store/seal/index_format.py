"""What the indices of a sealed rank and of an archived run have in common in their format.

An index is one line of JSON with its checksum, as a catalogue line is, compressed. Ascending
numbers (steps, ranks) are written as half-open ranges. Sizes and counts in an index are checked
before memory is allocated for them, because the index may come from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from anchorlib.store.format import is_sound, items, mapping, step
from anchorlib.store.seal.codecs import inflated

__all__ = [
    "MOST_BYTES",
    "MOST_STEPS",
    "RankLists",
    "loss_scale",
    "numbers_of",
    "ranges_of",
    "read_line",
]

MOST_BYTES: Final = 64 << 20
"""The most bytes of an index as text: as objects in memory it is some twelve times as large.

A larger index is not made and not read; then the ranks themselves are read.
"""

MOST_STEPS: Final = 1 << 24
"""More steps than a run has: each is a number in memory, and a few bytes may claim any number."""


def read_line(data: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a compressed index.

    data: the bytes of the index. Raises ValueError where they are damaged or their checksum does
        not fit.
    """
    line = inflated(data, MOST_BYTES)
    if not line.endswith(b"\n") or not is_sound(line[:-1]):
        raise ValueError("it does not fit its checksum")
    return mapping(json.loads(line))


def ranges_of(numbers: Sequence[int]) -> list[list[int]]:
    """Return ascending numbers as half-open ranges, [[start, stop], …]."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] = number + 1
        else:
            ranges.append([number, number + 1])
    return ranges


def numbers_of(ranges: Any, most: int) -> tuple[int, ...]:
    """Return the numbers in ranges that `ranges_of` made.

    Raises ValueError for more than `most` numbers, and for a value that is no list of ranges.
    """
    numbers: list[int] = []
    for start, stop in (map(step, items(one)) for one in items(ranges)):
        if not 0 <= stop - start <= most - len(numbers):
            raise ValueError("it speaks of more ranks or steps than there can be")
        numbers += range(start, stop)
    return tuple(numbers)


def loss_scale(value: Any) -> float:
    """Return a loss scale that an index states; raise ValueError where it is no float."""
    if not isinstance(value, float):
        raise ValueError("a loss scale is no number")
    return value


class RankLists:
    """Parses lists of a run's ranks; equal lists, which are the rule, are kept in memory once."""

    def __init__(self, all_ranks: tuple[int, ...]) -> None:
        self._all = frozenset(all_ranks)
        self._most = len(all_ranks)
        self._room = MOST_STEPS  # most numbers of all different lists together
        self._known: dict[str, tuple[int, ...]] = {}

    def has(self, rank: int) -> bool:
        """Return whether the run has the rank `rank`."""
        return rank in self._all

    def of(self, ranges: Any) -> tuple[int, ...]:
        """Return the rank numbers that a list of half-open ranges, made by `ranges_of`, stands for.

        Raises ValueError for more numbers than the run has ranks.
        """
        key = json.dumps(ranges)
        if key not in self._known:
            self._known[key] = numbers_of(ranges, min(self._most, self._room))
            self._room -= len(self._known[key])
        return self._known[key]
