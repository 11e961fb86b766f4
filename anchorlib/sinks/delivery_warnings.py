"""Warnings about records that did not reach their collector: where they wait, and what to do.

A spool is a folder of this machine where records wait until the collector has them.
"""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path

from anchorlib.amounts import counted
from anchorlib.names import escape
from anchorlib.spool import WrittenSpool
from anchorlib.wire import Route

__all__ = ["DeliveryWarnings", "warn_no_spool"]

_log = logging.getLogger("anchorlib")


def warn_no_spool(place: Path, fault: OSError, limit: int) -> None:
    """Log that no spool could be made below `place`, so that records wait in memory.

    limit: the most bytes that may wait there.
    """
    _log.warning(
        "anchorlib: no spool can be made in %s (%s); records wait in memory (%d MiB at "
        "most), and are lost with this process; set ANCHOR_SPOOL to another directory",
        escape(str(place)),
        fault.strerror or fault,
        limit >> 20,
    )


class DeliveryWarnings:
    """Logs what a remote sink has to say about the delivery of one rank of `run`.

    route: knows the collector that the records go to at present.
    spool: the spool in which records wait; None if they wait in memory.
    limit: the most bytes that may wait in memory.
    """

    def __init__(self, run: str, route: Route, spool: WrittenSpool | None, limit: int) -> None:
        self._run, self._route, self._spool, self._limit = run, route, spool, limit

    def away(self, sentence: str) -> None:
        """Log why no records can be sent now (`sentence`), and where they wait."""
        spool = self._spool
        _log.warning(
            "anchorlib: %s; records wait %s (%d MiB at most) and are sent when it answers",
            sentence,
            "in memory" if spool is None else f"in {escape(str(spool.folder))}",
            (self._limit if spool is None else spool.limit) >> 20,
        )

    def moved(self, sentence: str) -> None:
        """Log `sentence`, which says that the rank goes on at another collector."""
        _log.warning("anchorlib: %s", sentence)

    def may_lose_power(self) -> None:
        """Log that the collector confirms records that a power loss could still cost it.

        The session asked for durability="power".
        """
        _log.warning(
            "anchorlib: the collector at %s acknowledges records that its disk may not have "
            "yet, though durability='power' was asked for; start it with --durability power",
            self._route.address,
        )

    def refused(self, refusal: str) -> None:
        """Log `refusal`, why the collector has refused the run, and what becomes of records."""
        if self._spool is None:
            _log.warning(
                "anchorlib: %s; nothing is recorded from here on, and what is lost is counted",
                refusal,
            )
        else:
            _log.warning(
                "anchorlib: %s; records are kept in the spool: remove the cause, then deliver them "
                "with `%s`, or deliver them to another store, or under another name (--as NAME)",
                refusal,
                self.push_line,
            )

    def closing(self, waiting: int, timeout: float) -> None:
        """Log that closing the run waits until `waiting` records have reached the collector.

        Logs nothing if stderr is a terminal, which shows a progress bar instead, or missing.
        timeout: the most seconds that the close waits.
        """
        if sys.stderr is not None and not sys.stderr.isatty():
            address = self._route.address
            _log.warning(
                "anchorlib: closing run %s waits up to %g s for %s to %s",
                self._run,
                round(timeout, 1),
                counted(waiting, "record") if waiting else address,
                f"reach {address}" if waiting else "close it",
            )

    def undelivered(self, records: int) -> None:
        """Log that `records` records stay in the spool, and the command that delivers them."""
        _log.warning(
            "anchorlib: %s of run %s did not reach %s in time; they are kept: deliver "
            "them with `%s`",
            counted(records, "record"),
            self._run,
            self._route.address,
            self.push_line,
        )

    @property
    def push_line(self) -> str:
        """The shell command that delivers what waits in the spool, for a sink that has one."""
        folder = None if self._spool is None else self._spool.folder
        return f"anchor push {shlex.quote(str(folder))} --to {self._route.address}"
