"""The destination of a spool: a store, and the name of the run there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a spool.

    to: the store: a directory or a collector's address.
    run: the run's name there; None for the spool's own.
    follows: whether an earlier spool of the same rank was just delivered under the same name.
    """

    to: str
    run: str | None = None
    follows: bool = False

    @property
    def key(self) -> str:
        """The text by which the spool's file `lost` names this destination."""
        return self.to if self.run is None else f"{self.to} as {self.run}"
