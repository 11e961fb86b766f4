"""The type of the functions by which long work tells how far it is."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress"]


class Progress(Protocol):
    """A function that long work calls again and again, with how much is done and how much there is.

    done, total: in a unit that the work chooses, such as bytes, records or files.
    """

    def __call__(self, done: int, total: int, /) -> None: ...
