"""Where a spool is delivered to: a store, and the name of the run there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Destination"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a spool is delivered to.

    to: the store: a directory or a collector's address.
    run: the run's name there; None for the name under which it was recorded.

    follows: whether an earlier spool of the same rank was just delivered there, so that this spool
        continues the rank under the name `run`. Without `run` the spool itself says what it
        continues.
    """

    to: str
    run: str | None = None
    follows: bool = False

    @property
    def key(self) -> str:
        """The text by which the spool's file `lost` names this destination."""
        return self.to if self.run is None else f"{self.to} as {self.run}"
