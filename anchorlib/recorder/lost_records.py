"""Counts records that did not reach the sink whole, states them as gaps, and logs each cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anchorlib.block import Misfit
from anchorlib.names import escape, join
from anchorlib.record import Gap
from anchorlib.recorder.statements import PendingStatements

__all__ = ["LATE", "NEVER", "LostRecords"]

LATE = "not written before the session closed"
NEVER = "its values were not copied from the device"
_NO_VALUES = "queue full: values dropped"

Series = tuple[str, str, str]


class LostRecords:
    """Counts records that were lost, or kept without their values.

    Two threads must not count at once: only one thread may count, or a lock has to be held.

    statements: the collection to which a gap is added for each loss.
    warn: called with the text of a warning, to log it.

    records: how many records are lost, so that not even a summary is kept.
    summary_only: how many records are kept without their values, with a summary alone.
    nbytes: the bytes of the lost values that `lose`, `lose_by` and `lose_values` have counted.
    """

    def __init__(self, statements: PendingStatements, warn: Callable[[str], None]) -> None:
        self.records = self.summary_only = self.nbytes = 0
        self._statements = statements
        self._warn = warn
        self._logged: set[str] = set()

    def lose(self, series: Series, step: int, nbytes: int, reason: str) -> None:
        """Count a record of which not even a summary is kept; state the loss as a gap.

        series: the name, kind and mode of the record.
        nbytes: the bytes of values that would have been kept.
        reason: why the record is lost; gaps of one series and reason are added up.
        """
        self.records += 1
        self._count(series, step, nbytes, reason)

    def lose_by(self, lost: Iterable[tuple[Series, int, int]], fault: Exception) -> None:
        """Count records, (series, step, bytes) each, that are lost because of an exception.

        The first record that is lost to each type of exception is logged.
        """
        reason = f"{type(fault).__name__}: {fault}"[:200]
        for series, step, nbytes in lost:
            self.lose(series, step, nbytes, reason)
            name, kind, _ = series
            self.warn_once(
                f"lost:{type(fault).__name__}",
                f"{escape(join(name, kind))} at step {step} was not recorded: {reason}; "
                "training goes on, and what is lost is counted",
            )

    def leave_out(self, misfit: Misfit) -> None:
        """Count a record that cannot be stored, and state the loss as a gap.

        The first such record is logged.

        misfit: names the record, and says why it cannot be stored.
        """
        self.records += 1
        where = (misfit.name, misfit.kind, misfit.mode)
        self._statements.gap(Gap(*where, misfit.reason, 1, misfit.step, misfit.step))
        self.warn_once(
            "misfit",
            f"{escape(join(misfit.name, misfit.kind))} at step {misfit.step} was left out: "
            f"{escape(misfit.reason)}",
        )

    def lose_values(self, series: Series, step: int, nbytes: int) -> None:
        """Count a record of which only the summary is kept because the queue was full.

        nbytes: the bytes of its values, which are dropped. The loss is stated as a gap.
        """
        self.summary_only += 1
        self._count(series, step, nbytes, _NO_VALUES)

    def warn_once(self, key: str, message: str) -> None:
        """Log `message` as a warning, unless a message with the same `key` was logged before."""
        if key not in self._logged:
            self._logged.add(key)
            self._warn(message)

    def _count(self, series: Series, step: int, nbytes: int, reason: str) -> None:
        self.nbytes += nbytes
        self._statements.gap(Gap(*series, reason, 1, step, step))
