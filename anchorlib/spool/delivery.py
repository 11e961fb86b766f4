"""Delivers the spool that a dead process left, to a collector or into a directory.

spool ─▶ collector     over gRPC, in the name of the writer that made the spool
      └▶ directory     with the store's own writer

A spool is a folder with records for a collector; its files with records are its segments. Records
that the target has already are compared with the spool's, and not sent again; if they differ, the
delivery fails.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from anchorlib.errors import CollectorError, RunBusyError, StoreError
from anchorlib.names import escape
from anchorlib.progress import Progress
from anchorlib.spool.dead_spool import DeliveryResult, SpoolContent
from anchorlib.spool.destination import Destination
from anchorlib.spool.directory import to_directory
from anchorlib.spool.sending import AWAY, Sender
from anchorlib.spool.spool_folder import SpoolLabel, spools_of
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.stored_attempts import past_attempts
from anchorlib.wire import (
    Credentials,
    Failure,
    FailureKind,
    Hello,
    Outbox,
    PushReply,
    Route,
    is_address,
    parse_address,
    parse_addresses,
)

__all__ = ["Delivery", "DeliveryResult", "deliver", "left_spools"]


_log = logging.getLogger("anchorlib")


class _Draining(Outbox):
    """The outbox (queue of messages) of a spool that no process writes any more.

    If the session that wrote the spool was closed, the last message closes the run at the collector
    too. Otherwise the last message is a flush, the delivery ends with the answer to it, and the run
    stays open.
    """

    def __init__(self, content: SpoolContent) -> None:
        frames = content.frames
        super().__init__(
            frames=frames,
            definitions=frames.definitions,
            may_lag=True,
            earlier=content.links,
            attempt=content.attempt,
        )
        self._content: SpoolContent | None = content
        self.gap(content.notes.gaps)
        self.say_lineage(content.notes.lineage)
        self._last_flush = self.flush()
        self._close = content.notes.closed
        if self._close:
            self.close()

    def next(self) -> bytes | None:
        """Take the next message to send from the queue, and return it; None if there is none now.

        The gaps that count damaged records follow the last message with records.
        """
        content = self._content
        if self.resumed and content is not None and content.frames.first() is None:
            self._content = None
            self.gap(content.damage())
        return super().next()

    def take(self, reply: PushReply) -> None:
        """Process a reply of the collector: it says which records and flushes are done.

        If the session that wrote the spool was never closed, the reply to the last flush sets
        `closed`, which ends the delivery.
        """
        super().take(reply)
        if not self._close and self.flushed >= self._last_flush:
            self.closed = True


class Delivery:
    """The delivery of one spool to a collector; construction asks what the collector has already.

    work: the spool, which this process has locked. target: the collector, and the run's name there.
    changed: guards the queue of messages (`outbox`) and the sender.

    on_trouble: called with a sentence at the first failure, and again at the first failure that
        follows progress.

    seconds: how long the collector may stay away before the delivery ends.

    Construction raises StoreError for a spool in which nothing names its run, UnsupportedError for
    a spool of a protocol version that cannot be delivered, RunExistsError if the collector has
    another recording of the same rank, CollectorError if the collector does not answer or refuses.
    """

    def __init__(
        self,
        work: OwnedSpool,
        target: Destination,
        credentials: Credentials,
        changed: threading.Condition,
        on_trouble: Callable[[str], None],
        seconds: float = math.inf,
    ) -> None:
        self._content = content = SpoolContent(work, target, changed)
        hello = content.hello(past_attempts(content.run, content.rank, target.to, content.part))
        self.outbox = _Draining(content)
        self._changed = changed
        route = Route([parse_address(target.to)], content.run, content.rank, seconds)
        self.sender = Sender(route, hello, self.outbox, changed, credentials, on_trouble)

    @property
    def delivered(self) -> bool:
        """Whether the collector has confirmed everything in the spool, so that `finish` is due."""
        return self.outbox.closed

    def run(self) -> None:
        """Send until all is delivered, the collector refuses the spool, or `cancel` was called.

        Blocks meanwhile. Ends also if the collector stays away too long; `delivered` and `sender`
        say how it ended.
        """
        try:
            self.sender.run()
        finally:
            self._content.frames.close()

    def cancel(self) -> None:
        """Make `run` stop, without waiting for its end; any thread may call this.

        Delivered records stay at the collector.
        """
        with self._changed:
            self.sender.finished = True
            self._changed.notify_all()
        self.sender.cancel()

    def finish(self) -> DeliveryResult:
        """Remove the spool, and return the counts of the delivery; call this once `delivered`."""
        return self._content.finish()


def left_spools(place: Path, hello: Hello, route: Route) -> Iterator[OwnedSpool]:
    """Yield the spools that dead writers of a rank left for the same collectors, oldest first.

    Each spool is locked for this process; the caller has to `release` it. The spool of the present
    writer is left out, and so are spools that other live processes have locked.
    place: the directory with the spools. hello, route: the Hello message (who writes which run) and
    the collectors of the rank's present writer.
    """
    mine, among = hello.writer_id.hex(), {str(one) for one in route.order}
    for folder in spools_of(place, hello.run, hello.rank):
        label = SpoolLabel.read(folder)
        if label is not None and label.writer_id == mine:
            continue
        try:
            work = OwnedSpool.take(folder)
        except (RunBusyError, StoreError):
            continue  # its process is alive, or it was delivered a moment ago
        if work.label is not None and work.label.to in among:
            yield work
        else:
            work.release()


def deliver(
    folder: Path, to: str, *, patience: float, progress: Progress, run: str | None = None
) -> DeliveryResult:
    """Deliver the spool in `folder` to the store at `to`, remove the spool, return the counts.

    Older spools of the same rank beside `folder` are delivered first, so that attempts (recordings
    of the rank) are stored in the order in which they were made.

    run: the name that the run gets in `to`; None for the name under which it was recorded.
    patience: after how many seconds without any progress a collector counts as unreachable.
    progress: called now and then with (number of records delivered, number in all).

    Raises RunBusyError if a live process owns the spool, CollectorError if a collector refuses or
    makes no progress, StoreError if the spool or the directory cannot be used, RunExistsError if
    the store has another recording of the rank. Then the spool stays; records that were delivered
    before the error are not sent again the next time.
    """
    follows = False
    for earlier in _earlier(folder):
        _log.warning("anchorlib: delivering %s first, which is older", escape(str(earlier)))
        deliver(earlier, to, patience=patience, progress=progress, run=run)
        follows = True
    work = OwnedSpool.take(folder)
    try:
        if (nothing := _drained(work)) is not None:
            return nothing
        if is_address(to):
            return _to_collectors(work, Destination(to, run, follows), patience, progress)
        return to_directory(work, Destination(str(Path(to).absolute()), run, follows), progress)
    finally:
        work.release()


def _drained(work: OwnedSpool) -> DeliveryResult | None:
    """Remove a spool without segments, as nothing of it is left to deliver; damaged files stay.

    Returns the outcome, whose counts are all 0. Returns None, and removes nothing, if the spool has
    segments or no readable spool.json (its label).
    """
    segments = work.segments()
    if len(segments) or work.label is None:
        return None
    label = work.label
    work.finish(segments)
    return DeliveryResult(label.run, label.rank, 0, 0, 0, 0)


def _earlier(folder: Path) -> list[Path]:
    """Return the newest spool older than `folder` that still has segments, as a list of 0 or 1.

    Only those spools count that lie beside `folder`, are of the same run and rank, and go to the
    same collector or list of collectors. The list is empty if `folder` has no readable spool.json.
    """
    mine = SpoolLabel.read(folder)
    if mine is None:
        return []
    older = [
        path
        for path in spools_of(folder.absolute().parent, mine.run, mine.rank)
        if (label := SpoolLabel.read(path)) is not None
        and (label.to == mine.to or (label.among and label.among == mine.among))
        and label.created_ns < mine.created_ns
        and any(path.glob("*.seg"))
    ]
    return older[-1:]


def _to_collectors(
    work: OwnedSpool, target: Destination, patience: float, progress: Progress
) -> DeliveryResult:
    """Deliver a spool to one of the collectors in `target`; return the counts of the delivery.

    The collector that the spool's label (spool.json) names is tried first, unless the run gets
    another name; where a collector is away, the next one is tried. Raises CollectorError if the
    last one is away too, or if a collector refuses.
    """
    label = work.label
    run, rank = (target.run or label.run, label.rank) if label else ("", 0)
    order = [str(one) for one in Route(parse_addresses(target.to), run, rank).order]
    if label is not None and target.run is None:
        order.sort(key=lambda one: one != label.to)
    for one in order[:-1]:
        try:
            return _to_collector(work, replace(target, to=one), patience, progress)
        except CollectorError as fault:
            if fault.kind not in AWAY:
                raise
            _log.warning("anchorlib: %s; the next collector is asked", fault)
    return _to_collector(work, replace(target, to=order[-1]), patience, progress)


def _to_collector(
    work: OwnedSpool, target: Destination, patience: float, progress: Progress
) -> DeliveryResult:
    changed = threading.Condition()
    delivery = Delivery(work, target, Credentials.from_environment(), changed, lambda _: None)
    sender = delivery.sender
    sender.closing = True  # shorter pauses, because a user waits for the delivery
    thread = threading.Thread(target=delivery.run, name="anchorlib-push", daemon=True)
    thread.start()
    try:
        _watch(delivery, changed, patience, progress)
    finally:
        delivery.cancel()
        thread.join()
    if not delivery.delivered:
        sentence = sender.trouble or f"{target.to} did not answer"
        raise (sender.refused or Failure(FailureKind.SILENT, sentence)).error()
    return delivery.finish()


def _watch(
    delivery: Delivery, changed: threading.Condition, patience: float, progress: Progress
) -> None:
    """Block until the delivery is over, or has made no progress for `patience` seconds.

    progress: called after each progress with (number of records delivered, number in all).
    """
    outbox, sender = delivery.outbox, delivery.sender
    moved, last = (-1, -1, -1), time.monotonic()
    while True:
        with changed:
            now = (outbox.committed, outbox.flushed, outbox.confirmed)
            if outbox.closed or sender.finished:
                return
            if now == moved:
                changed.wait(0.1)
        if now != moved:
            moved, last = now, time.monotonic()
            progress(outbox.committed, outbox.committed + outbox.waiting)
        elif time.monotonic() - last > patience:
            return
