"""Records that are still to be made: what waits in the queue.

Everything costly about them (summaries, digests) is made on the drain thread, for many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from anchorlib.block import RowBlock

__all__ = ["Deferred", "MakeBlock", "WithoutValues", "block_of_items"]


class Deferred(Protocol):
    """A record that is still to be made."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def kind(self) -> str:
        """The tensor's kind."""

    @property
    def mode(self) -> str:
        """The mode's canonical text."""

    @property
    def step(self) -> int:
        """The step it was observed in."""

    @property
    def nbytes(self) -> int:
        """What it holds in memory while it waits."""

    @property
    def keeps(self) -> bool:
        """Whether its mode keeps values, not the summary alone."""

    def release(self) -> None:
        """The record has been put: its memory may be used again."""


class MakeBlock(Protocol):
    """Makes the block of records that waited, in order."""

    def __call__(self, items: Sequence[Any], /) -> RowBlock:
        """May raise what reading their values raises; each is then tried by itself."""


class WithoutValues:
    """A deferred record whose values are left out once its summary is made."""

    __slots__ = ("keeps", "kind", "mode", "name", "nbytes", "step", "whole")

    def __init__(self, whole: Deferred) -> None:
        self.whole = whole
        self.name, self.kind, self.mode = whole.name, whole.kind, whole.mode
        self.step, self.nbytes, self.keeps = whole.step, whole.nbytes, whole.keeps

    def release(self) -> None:
        """The record has been put: its memory may be used again."""
        self.whole.release()


def block_of_items(items: Sequence[Deferred], make: MakeBlock) -> RowBlock:
    """The block that `make` makes of them, without the values of those that leave them out."""
    wholes = [item.whole if isinstance(item, WithoutValues) else item for item in items]
    block = make(wholes)
    bare = np.array([isinstance(item, WithoutValues) for item in items], bool)
    return block.without_values(bare) if bare.any() else block
