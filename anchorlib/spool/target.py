"""Where a spool goes: a store, and the run that it becomes there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a spool goes.

    to: the store, a directory or an address.
    run: the run's name there; None for the spool's own.
    follows: an earlier spool of the same rank came before, under the same name.
    """

    to: str
    run: str | None = None
    follows: bool = False

    @property
    def key(self) -> str:
        """How a spool remembers what it has brought there."""
        return self.to if self.run is None else f"{self.to} as {self.run}"
