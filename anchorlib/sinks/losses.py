"""What a queue lost: counted, stated as gaps, and told once in the log."""

from __future__ import annotations

import logging

from anchorlib.block import Misfit
from anchorlib.names import escape, join
from anchorlib.record import Gap
from anchorlib.sinks.deferred import Deferred
from anchorlib.sinks.statements import Statements

__all__ = ["Losses"]

_log = logging.getLogger("anchorlib")

_NO_VALUES = "queue full: values dropped"


class Losses:
    """Counts records that did not reach the sink whole. The queue's lock guards the counts.

    records: lost altogether. bare: kept without their values. nbytes: of values, of both.
    """

    def __init__(self, statements: Statements) -> None:
        self.records = self.bare = self.nbytes = 0
        self._statements = statements
        self._told: set[str] = set()

    def lose(self, one: Deferred, reason: str) -> None:
        """Count a record that is lost altogether, for `reason`."""
        self.records += 1
        self._count(one, reason)

    def leave_out(self, misfit: Misfit) -> None:
        """Count a record that no store has room for; the first one is logged."""
        self.records += 1
        where = (misfit.name, misfit.kind, misfit.mode)
        self._statements.gap(Gap(*where, misfit.reason, 1, misfit.step, misfit.step))
        self.warn_once(
            "misfit",
            f"{escape(join(misfit.name, misfit.kind))} at step {misfit.step} was left out: "
            f"{escape(misfit.reason)}",
        )

    def lose_by(self, one: Deferred, fault: Exception) -> None:
        """Count a record that a fault has cost; the first one of a kind is logged."""
        reason = f"{type(fault).__name__}: {fault}"[:200]
        self.lose(one, reason)
        self.warn_once(
            f"lost:{type(fault).__name__}",
            f"{escape(join(one.name, one.kind))} at step {one.step} was not recorded: {reason}; "
            "training goes on, and what is lost is counted",
        )

    def lose_values(self, one: Deferred) -> None:
        """Count a record that is kept without its values, for want of room."""
        self.bare += 1
        self._count(one, _NO_VALUES)

    def warn_once(self, key: str, message: str) -> None:
        """Log the first message of each key."""
        if key not in self._told:
            self._told.add(key)
            _log.warning("anchorlib: %s", message)

    def _count(self, one: Deferred, reason: str) -> None:
        self.nbytes += one.nbytes if one.keeps else 0
        self._statements.gap(Gap(one.name, one.kind, one.mode, reason, 1, one.step, one.step))
