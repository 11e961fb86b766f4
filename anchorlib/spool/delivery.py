"""What a dead process left in its spool, brought to where it belongs.

spool ─▶ collector     as the writer that made it: what it has already is not sent again
      └▶ directory     by the store's own writer, the same way
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
from anchorlib.spool.directory import to_directory
from anchorlib.spool.load import Delivered, Load
from anchorlib.spool.past import past_attempts
from anchorlib.spool.place import SpoolLabel, spools_of
from anchorlib.spool.sending import AWAY, Sender
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.target import Target
from anchorlib.wire import (
    Credentials,
    Failure,
    Hello,
    Kind,
    Outbox,
    PushReply,
    Route,
    is_address,
    parse_address,
    parse_addresses,
)

__all__ = ["Delivered", "Delivery", "deliver", "left_spools"]


_log = logging.getLogger("anchorlib")

Progress = Callable[[int, int], None]


class _Draining(Outbox):
    """Ends its stream, as if it had closed the run, once all there is was published."""

    def __init__(self, load: Load) -> None:
        frames = load.frames
        super().__init__(
            frames=frames,
            definitions=frames.definitions,
            may_lag=True,
            earlier=load.links,
            attempt=load.attempt,
        )
        self._load: Load | None = load
        self.gap(load.notes.gaps)
        self.say_lineage(load.notes.lineage)
        self._last_flush = self.flush()
        self._close = load.notes.closed
        if self._close:
            self.close()

    def next(self) -> bytes | None:
        """The next message to send; what damage cost is stated when all else was read."""
        load = self._load
        if self.resumed and load is not None and load.frames.first() is None:
            self._load = None
            self.gap(load.damage())
        return super().next()

    def take(self, reply: PushReply) -> None:
        """What the collector said."""
        super().take(reply)
        if not self._close and self.flushed >= self._last_flush:
            self.closed = True


class Delivery:
    """One spool on its way to a collector.

    seconds: how long the collector may stay away before the delivery ends.

    Raises StoreError for a spool in which nothing says whose it is, RunExistsError where another
    recording stands in its place.
    """

    def __init__(
        self,
        work: OwnedSpool,
        target: Target,
        credentials: Credentials,
        changed: threading.Condition,
        on_trouble: Callable[[str], None],
        seconds: float = math.inf,
    ) -> None:
        self._load = load = Load(work, target, changed)
        hello = load.hello(past_attempts(load.run, load.rank, target.to, load.part))
        self.outbox = _Draining(load)
        self._changed = changed
        route = Route([parse_address(target.to)], load.run, load.rank, seconds)
        self.sender = Sender(route, hello, self.outbox, changed, credentials, on_trouble)

    @property
    def delivered(self) -> bool:
        """Whether all of it is there."""
        return self.outbox.closed

    def run(self) -> None:
        """Send until all of it is there, the collector refused, or `cancel`."""
        try:
            self.sender.run()
        finally:
            self._load.frames.close()

    def cancel(self) -> None:
        """Stop, from any thread; what is there stays there."""
        with self._changed:
            self.sender.finished = True
            self._changed.notify_all()
        self.sender.cancel()

    def finish(self) -> Delivered:
        """All is there: remove it here."""
        return self._load.finish()


def left_spools(place: Path, hello: Hello, route: Route) -> Iterator[OwnedSpool]:
    """Spools of earlier writers of this rank that go to the same store, now this process's own."""
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
) -> Delivered:
    """Bring the spool in `folder` to the store at `to`, and remove it.

    run: the run's name there; None for its own.
    patience: seconds without any answer after which a collector counts as unreachable.
    progress: told from time to time how many records of how many are there.

    Raises RunBusyError where a live process owns the spool, CollectorError, StoreError,
    RunExistsError. What was delivered until then is not sent again the next time.

    Spools beside it that earlier attempts at the same rank left come first, so that attempts are
    in the order in which they were made.
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
            return _to_collectors(work, Target(to, run, follows), patience, progress)
        return to_directory(work, Target(str(Path(to).absolute()), run, follows), progress)
    finally:
        work.release()


def _drained(work: OwnedSpool) -> Delivered | None:
    """A spool in which nothing waits any more: it goes, but for files that were damaged."""
    segments = work.segments()
    if len(segments) or work.label is None:
        return None
    label = work.label
    work.finish(segments)
    return Delivered(label.run, label.rank, 0, 0, 0, 0)


def _earlier(folder: Path) -> list[Path]:
    """The nearest older spool of the same rank for the same store, if there is one."""
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
    work: OwnedSpool, target: Target, patience: float, progress: Progress
) -> Delivered:
    """To the one there is, or of several to the one that it was meant for, else to the next."""
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
    work: OwnedSpool, target: Target, patience: float, progress: Progress
) -> Delivered:
    changed = threading.Condition()
    delivery = Delivery(work, target, Credentials.from_environment(), changed, lambda _: None)
    sender = delivery.sender
    sender.closing = True  # someone waits for it
    thread = threading.Thread(target=delivery.run, name="anchorlib-push", daemon=True)
    thread.start()
    try:
        _watch(delivery, changed, patience, progress)
    finally:
        delivery.cancel()
        thread.join()
    if not delivery.delivered:
        sentence = sender.trouble or f"{target.to} did not answer"
        raise (sender.refused or Failure(Kind.SILENT, sentence)).error()
    return delivery.finish()


def _watch(
    delivery: Delivery, changed: threading.Condition, patience: float, progress: Progress
) -> None:
    """Until it is over, or nothing has moved for too long."""
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
