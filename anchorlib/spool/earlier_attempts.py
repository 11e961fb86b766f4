"""Delivers the spools of a rank's earlier attempts, before the present attempt sends anything.

An attempt is one recording of a rank; a resumed training begins another. The process of an earlier
attempt may have left a spool: a folder with records that the collector lacks. The collector must
store attempts in the order in which they were made.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anchorlib.errors import AnchorError, CollectorError
from anchorlib.names import escape
from anchorlib.spool.destination import Destination
from anchorlib.spool.sending import AWAY, Sender
from anchorlib.wire import Credentials, FailureKind, Hello, Route

if TYPE_CHECKING:
    from anchorlib.spool.delivery import Delivery
    from anchorlib.spool.spools import OwnedSpool

__all__ = ["Earlier"]

_log = logging.getLogger("anchorlib")

_FIRST_PAUSE: Final = 0.5
_LAST_PAUSE: Final = 5.0
_REFUSALS: Final = 5  # in a row, after which a spool is left for `anchor push`


class Earlier:
    """Delivers the spools of a rank's earlier attempts, before `sender` sends the present attempt.

    The same thread first calls `deliver`, then runs `sender`.

    route: the collectors of the present attempt. hello: the message that says who writes it.

    sender: the sender of the present attempt; once it is `finished`, no earlier attempt is
        delivered any more.

    changed: guards `sender`.

    on_trouble: called, without the lock of `changed`, with a sentence at the first failure, and
        again at the first failure that follows progress.
    """

    def __init__(  # the parts it connects
        self,
        route: Route,
        hello: Hello,
        sender: Sender,
        changed: threading.Condition,
        credentials: Credentials,
        on_trouble: Callable[[str], None],
    ) -> None:
        self._route = route
        self._hello = hello
        self._sender = sender
        self._changed = changed
        self._credentials = credentials
        self._on_trouble = on_trouble
        self._delivery: Delivery | None = None

    def deliver(self, place: Path) -> None:
        """Deliver the spools that earlier recordings of the rank left below `place`, oldest first.

        Blocks until all are delivered, also while a collector is away, or until `sender` is
        finished. A spool that cannot be delivered is left as it is, after a warning.
        """
        from anchorlib.spool.delivery import left_spools  # it needs the store

        for work in left_spools(place, self._hello, self._route):
            try:
                self._deliver(work)
            except (AnchorError, OSError) as fault:
                _log.warning(
                    "anchorlib: the spool %s of an earlier attempt was not delivered: %s",
                    escape(str(work.folder)),
                    fault,
                )
            finally:
                work.release()

    def hurry(self) -> None:
        """Make the pauses between tries of the present delivery shorter, as the session is closing.

        The caller has to hold the lock of `changed`, and to notify `changed` afterwards.
        """
        if self._delivery is not None:
            self._delivery.sender.closing = True

    def cancel(self) -> None:
        """Stop the delivery of the present spool, without waiting; any thread may call this.

        For the others, set `sender.finished`. Undelivered spools stay where they are.
        """
        if self._delivery is not None:
            self._delivery.cancel()

    def _deliver(self, work: OwnedSpool) -> None:
        places = [one for one in self._route.order if work.label and str(one) == work.label.to]
        places += [one for one in self._route.order if one not in places]
        for place in itertools.cycle(places):
            try:
                self._bring(work, str(place))
            except CollectorError as fault:
                if not (self._route.is_spread and fault.kind in AWAY):
                    raise
                continue  # with the next collector
            return

    def _bring(self, work: OwnedSpool, to: str) -> None:
        delivery = self.begin(work, to)
        if delivery is None:
            return
        delivery.run()
        if delivery.delivered:
            delivery.finish()
        elif (refused := delivery.sender.refused) is not None:
            raise refused.error()

    def begin(self, work: OwnedSpool, to: str) -> Delivery | None:
        """Return the delivery of a spool to the collector `to`, ready to run.

        This asks the collector which recordings of the rank it has, again and again if need be, and
        waits for the answer. Returns None if `sender` finished before the answer came. Raises
        CollectorError if the collector refuses several times in a row, or, where there are several
        collectors, stays away; and the other errors of `Delivery`.
        """
        from anchorlib.spool.delivery import Delivery

        pause, refusals, began = _FIRST_PAUSE, 0, time.monotonic()
        while not self._sender.finished:
            try:
                begun = Delivery(
                    work,
                    Destination(to),
                    self._credentials,
                    self._changed,
                    self._on_trouble,
                    self._route.seconds,
                )
            except CollectorError as fault:
                if time.monotonic() - began >= self._route.seconds:
                    raise
                passes = isinstance(fault.kind, FailureKind) and fault.kind.passing
                refusals = 0 if passes else refusals + 1
                if refusals >= _REFUSALS:
                    raise
                with self._changed:
                    self._sender.trouble = str(fault)
                    seconds = random.uniform(0, min(pause, self._route.seconds / 4))
                    self._changed.wait_for(lambda: self._sender.finished, seconds)
                pause = min(2 * pause, _LAST_PAUSE)
            else:
                with self._changed:
                    self._delivery = begun
                    begun.sender.follows = True
                    begun.sender.finished = self._sender.finished
                return begun
        return None
