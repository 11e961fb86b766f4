"""The watches of a session's optimizers. Only the optimizer itself keeps its watches alive."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

from anchorlib.capture.optimizers.optimizer import OptimizerWatch

__all__ = ["OptimizerWatches"]


class OptimizerWatches:
    """The optimizer watches of one session, in the order in which they were added.

    A watch is freed together with its optimizer.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[ref[OptimizerWatch]]] = {}  # by the id of the optimizer

    def __iter__(self) -> Iterator[OptimizerWatch]:
        for some in list(self._held.values()):
            yield from (watch for one in some if (watch := one()) is not None)

    def of(self, optimizer: object) -> list[OptimizerWatch]:
        """Return the watches of one optimizer, one for each model."""
        some = [one() for one in self._held.get(id(optimizer), ())]
        return [watch for watch in some if watch is not None and watch.of() is optimizer]

    def add(self, watch: OptimizerWatch) -> None:
        """Add `watch`, whose optimizer must still live."""
        optimizer = watch.of()
        self._held[id(optimizer)] = [*map(ref, self.of(optimizer)), ref(watch)]

    def remove(self, watch: OptimizerWatch) -> None:
        """Remove `watch`, whose optimizer must still live."""
        optimizer = watch.of()
        self._held[id(optimizer)] = [ref(one) for one in self.of(optimizer) if one is not watch]
