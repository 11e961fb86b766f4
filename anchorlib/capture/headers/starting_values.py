"""Digests, at the beginning, of the parameters and buffers of which no values are recorded.

    starts   {"fc2.weight": [0, "9f3a0c51d2b7e684"], …}    step, and 64 bits of the digest

If a parameter differs between two runs from the beginning, the runs part at the first operation
that reads it. Without these digests that operation would be taken for the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

__all__ = ["StartingValues"]

_MOST_TENSORS: Final = 4096
_MOST_BYTES: Final = 1 << 32  # of all that is hashed, once: 0.5 s of one core, or of a GPU's bus
_HEX: Final = 16

Read = Callable[[], tuple[int, bytes]]
"""Reads one tensor: its size in bytes, and its digest; b"" where it has no values to read."""


class StartingValues:
    """The entry "starts" of a run header, to which each watched model adds digests of its tensors.

    tell: writes an entry of the header, given its key and value.
    """

    def __init__(self, tell: Callable[[str, Any], None]) -> None:
        self._tell = tell
        self._starts: dict[str, tuple[int, str]] = {}
        self._left = _MOST_BYTES

    def note(self, step: int, tensors: Iterable[tuple[str, Read]]) -> None:
        """Add the digests that `tensors` have as `step` begins, and write the entry.

        A name that has a digest already keeps it.

        tensors: names, each with a function that reads the tensor's size and digest. All calls
            together read at most 4,096 tensors, and stop after 4 GiB; further ones are left out.
        """
        for name, read in tensors:
            if len(self._starts) >= _MOST_TENSORS or self._left <= 0:
                break
            nbytes, digest = read()
            self._left -= nbytes
            if digest:
                self._starts.setdefault(name, (step, digest.hex()[:_HEX]))
        if self._starts:
            self._tell("starts", {name: list(one) for name, one in self._starts.items()})
