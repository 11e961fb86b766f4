"""What a session says when it ends: its summary line, and warnings of what it did not record."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from anchorlib.capture.counting import Clock
from anchorlib.capture.recording import Recorder, size_text, tell
from anchorlib.capture.sessions.counters import counters_of
from anchorlib.capture.sessions.settings import Settings
from anchorlib.capture.sessions.watching import Watches
from anchorlib.names import quoted
from anchorlib.recorder import RecordQueue
from anchorlib.scope import ANYTHING

__all__ = ["Ending"]

_log = logging.getLogger("anchorlib")


@dataclass(slots=True)
class Ending:
    """The last lines that one session logs.

    aloud: whether the summary line goes to stderr where the program has not set up logging.
    has_summary_line: False where the code that opened the session writes that line, or wants none.
    """

    settings: Settings
    clock: Clock
    recorder: Recorder
    queue: RecordQueue
    watches: Watches
    aloud: bool
    has_summary_line: bool = True

    def tell(self, undelivered: int) -> None:
        """Log the summary line, and warn of undelivered records and of selectors without a match.

        A warning is also logged for a perturbed rerun in which no model was watched.
        undelivered: how many records a collector had not taken when the session ended.
        """
        settings = self.settings
        if undelivered:
            _log.warning(
                "anchorlib: %d records of run %s did not reach %s",
                undelivered,
                settings.run,
                settings.store,
            )
        if settings.recording and self.has_summary_line:
            tell(
                "anchorlib: run %s, rank %d: %s",
                settings.run,
                settings.rank,
                self.summary_line(settings.store, undelivered),
                level=logging.WARNING if self._left_all_out else logging.INFO,
                aloud=self.aloud,
            )
        if settings.perturbs is not None:
            settings.perturbs.close()
        missing = self.watches.missing + settings.unmatched
        if missing and not self._left_all_out:
            _log.warning(
                "anchorlib: nothing ever matched %s; `anchor names %s` lists what was recorded",
                ", ".join(map(quoted, missing)),
                settings.run,
            )

    def summary_line(self, store: str, undelivered: int = 0) -> str:
        """Return a line about the session: steps, passes, the optimizers that ended them, records.

        store: where the records are, as the user typed it. undelivered: how many records a
            collector had not taken when the session ended.
        """
        counters, steps = counters_of(self.recorder, self.queue), str(self.clock.step_enders)
        if steps and self.recorder.last_step >= self.clock.step:
            # Readers count a step that nothing ended, such as an evaluation behind the training.
            steps += f"; what followed them is recorded as step {self.clock.step}"
        records = f"{counters.records:,} record{'' if counters.records == 1 else 's'}"
        dropped = f", {counters.dropped:,} dropped" if counters.dropped else ""
        kept = f"{records}, {size_text(counters.bytes)}, {self._place(store, undelivered)}{dropped}"
        why = ": nothing was observed in the phases and steps that were asked for"
        return f"{steps}; " * bool(steps) + kept + why * self._left_all_out

    def _place(self, store: str, undelivered: int) -> str:
        """Return a text on where the records are: in the store, or in part in the spool.

        The spool has the records that wait on this machine's disk for a collector.

        store: the store, as the user typed it. undelivered: how many records the collector had not
            taken when the session ended.
        """
        waiting = self.queue.waiting - undelivered
        if waiting <= 0:
            return f"in {store}"
        return f"of which {waiting:,} wait in the spool for {store}"

    @property
    def _left_all_out(self) -> bool:
        """Whether the session was limited to some phases or steps, and recorded nothing."""
        if self.settings.scope == ANYTHING:
            return False
        return not counters_of(self.recorder, self.queue).records
