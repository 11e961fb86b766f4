"""The optimizers that one session watches: found by the optimizer, held by it alone."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import ref

from anchorlib.capture.optimizers.optimizer import OptimizerWatch

__all__ = ["OptimizerWatches"]


class OptimizerWatches:
    """Those of one session, in the order in which they came. Each lives as its optimizer does."""

    def __init__(self) -> None:
        self._held: dict[int, list[ref[OptimizerWatch]]] = {}  # by the id of the optimizer

    def __iter__(self) -> Iterator[OptimizerWatch]:
        for some in list(self._held.values()):
            yield from (watch for one in some if (watch := one()) is not None)

    def of(self, optimizer: object) -> list[OptimizerWatch]:
        """Those of one optimizer, each for another model."""
        some = [one() for one in self._held.get(id(optimizer), ())]
        return [watch for watch in some if watch is not None and watch.of() is optimizer]

    def add(self, watch: OptimizerWatch) -> None:
        """One more."""
        optimizer = watch.of()
        self._held[id(optimizer)] = [*map(ref, self.of(optimizer)), ref(watch)]

    def remove(self, watch: OptimizerWatch) -> None:
        """One less."""
        optimizer = watch.of()
        self._held[id(optimizer)] = [ref(one) for one in self.of(optimizer) if one is not watch]
