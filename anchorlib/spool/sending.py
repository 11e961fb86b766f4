"""Sends the messages of an outbox to a collector, through any number of broken connections.

An outbox is the queue of a rank's messages, which stay in it until the collector has them.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

from anchorlib.errors import AnchorError
from anchorlib.wire import (
    KEEPALIVE_SECONDS,
    Address,
    Credentials,
    Failure,
    FailureKind,
    GarbledError,
    Hello,
    Outbox,
    PushStream,
    Route,
    failure,
    open_channel,
)
from anchorlib.wire.connection import grpc

__all__ = ["AWAY", "Sender"]

_log = logging.getLogger("anchorlib")

_FIRST_BACKOFF: Final = 0.1  # seconds; doubled with each failure
_BUSY_SECONDS: Final = 6.0 * KEEPALIVE_SECONDS
_HOPELESS: Final = 10  # failures in a row, neither passing nor permanent, before it gives up

AWAY: Final = frozenset(
    {FailureKind.UNREACHABLE, FailureKind.SILENT, FailureKind.LINE, FailureKind.STOPPING}
)
"""Failures that mean that the collector is away; one that answers that it is full is not away."""

# The longest pause in seconds, by whether the collector is full (each new stream costs it work) and
# whether this session is closing (which has little time).
_LAST_BACKOFF: Final = {
    (False, False): 5.0,
    (False, True): 0.5,
    (True, False): 15.0,
    (True, True): 2.0,
}


class Sender:
    """Sends the messages of an outbox to a rank's collector; call `run` on a separate thread.

    Where the collector stays away, the rank goes on at the next collector of `route`, from the
    first record that was not acknowledged.

    changed: guards the outbox and the attributes below.

    on_trouble: called, without the lock of `changed`, with a sentence at the first failure, and
        again at the first failure that follows progress.

    retries: how many failures there were so far.
    trouble: the last failure, as a sentence; "" if there was none.
    refused: the failure that ended the sending for good; None if there was none.
    finished: whether nothing is sent any more. Set this, and notify `changed`, to end `run`.
    closing: whether the session is closing. Set this, and notify `changed`, for shorter pauses.

    follows: whether the process that recorded this rank before is known to have ended. A collector
        that still calls the rank busy has only not noticed this yet, and is asked again.

    on_move: called, without the lock, with a sentence when the rank goes on at another collector.
        None: a collector that stays away ends the sending.
    """

    def __init__(  # the parts it connects
        self,
        route: Route,
        hello: Hello,
        outbox: Outbox,
        changed: threading.Condition,
        credentials: Credentials,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.on_move: Callable[[str], None] | None = None
        self.retries = 0
        self.trouble = ""
        self.refused: Failure | None = None
        self.finished = False
        self.closing = False
        self.follows = False
        self._route = route
        self._hello = hello
        self._outbox = outbox
        self._changed = changed
        self._credentials = credentials
        self._on_trouble = on_trouble
        self._stream: PushStream | None = None
        self._busy_since = self._away_since = 0.0

    def run(self) -> None:
        """Send until all is delivered and the outbox closed, or `finished` is set; block meanwhile.

        A failure that ends the sending for good is not raised: it sets `refused`, `trouble` and
        `finished`.
        """
        self._away_since = time.monotonic()  # earlier spools may have been delivered until now
        try:
            self._send()
        except Exception as fault:  # noqa: BLE001  # training goes on whatever happens here
            _log.exception("anchorlib: a defect in the sender")
            self._refuse(Failure(FailureKind.HERE, f"sending to {self._address} failed: {fault!r}"))

    @property
    def _address(self) -> Address:
        return self._route.address

    def cancel(self) -> None:
        """Break off the gRPC stream that is open, if any; any thread may call this.

        To end `run` as well, set `finished` before.
        """
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _send(self) -> None:
        failures = stuck = 0
        doubted = logged = None
        warned = False
        mark = self._outbox.committed
        while not self._over:
            fault = self._connect()
            if fault is None or (fault.kind is FailureKind.IDLE and self._rested()):
                continue
            # Only acknowledged records are progress: a collector with a full disk answers Hello.
            moved, mark = self._outbox.committed > mark, self._outbox.committed
            if moved:
                failures, warned = 0, False
                self._route.note_progress()
            failures += 1
            stuck = 0 if moved or fault.kind.passing or fault.kind.permanent else stuck + 1
            self.retries += 1
            refused = fault.kind.permanent and not self._may_pass(fault)
            # A flipped bit can turn any answer into a refusal, but hardly twice into the same one.
            doubtful = refused and fault.kind.remote and fault.kind is not doubted
            doubted = fault.kind
            if (refused and not doubtful) or stuck >= _HOPELESS:
                self._refuse(fault)
                return
            # A stream above the rate makes progress before each refusal, and would warn each time.
            known = fault.kind is FailureKind.RATE is logged
            if not (warned or doubtful or known or fault.kind is FailureKind.IDLE or self._over):
                warned, logged = True, fault.kind
                self._on_trouble(fault.sentence)
            failures = self._pause_or_move(failures, fault)

    def _pause_or_move(self, failures: int, fault: Failure) -> int:
        """Wait before the next try, or change to the next collector if this one stayed away.

        Without `on_move` the sending ends instead of a change.
        Returns `failures`, or 0 after a change or end. failures: how many failures came in a row.
        fault: the last of these.
        """
        is_away = fault.kind in AWAY or (fault.kind is FailureKind.BUSY and self._route.has_moved)
        away = time.monotonic() - self._away_since
        if not is_away or away < self._route.seconds or self._over:
            self._pause(failures, fault)
            return failures
        if self.on_move is None:
            self._refuse(fault)
        else:
            self._move(self.on_move)
        return 0

    def _move(self, tell: Callable[[str], None]) -> None:
        """Change to the next collector, to begin there with the first record not acknowledged.

        tell: called with a sentence about the change.
        """
        old = self._address
        with self._changed:
            self._route.move()
            self._hello.part.number = self._route.part
            self._hello.part.first = self._outbox.committed
        tell(
            f"the collector at {old} stays away; rank {self._hello.rank} of run "
            f"{self._hello.run} goes on at {self._address}"
        )
        self._away_since, self._busy_since = time.monotonic(), 0.0

    def _may_pass(self, fault: Failure) -> bool:
        """Return whether `fault` may pass: the rank is busy, perhaps only with a dead stream.

        A collector takes a while to notice that a machine, or the line to it, is gone. The dead
        stream may be one of an earlier process, or an earlier one of this process. Returns True for
        _BUSY_SECONDS at most, counted from the first such failure.
        """
        follows = self.follows or self._hello.resume or self._route.has_moved
        if not follows or fault.kind is not FailureKind.BUSY:
            return False
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        return now - self._busy_since < _BUSY_SECONDS

    @property
    def refusal(self) -> str:
        """A sentence on the failure that ended the sending for good; "" if there was none."""
        return "" if self.refused is None else self.refused.sentence

    @property
    def _over(self) -> bool:
        return self.finished or self._outbox.closed

    def _connect(self) -> Failure | None:
        """Connect and send until the stream ends; return the failure that ended it.

        Returns None if everything was sent, or if sending is finished.
        """
        try:
            channel = open_channel(self._address, self._credentials)
        except AnchorError as error:
            return Failure(FailureKind.HERE, str(error))
        try:
            seconds = self._route.seconds
            stream = PushStream(channel, self._hello, self._outbox, self._changed, seconds)
            with self._changed:
                if self.finished:
                    return None
                self._stream = stream
            stream.run(self._credentials.metadata)
        except grpc.RpcError as error:
            if stream.silent:
                return Failure(
                    FailureKind.SILENT, f"{self._address} has not answered for a long time"
                )
            return failure(self._address, error)
        except GarbledError as error:
            return Failure(FailureKind.LINE, f"the line to {self._address} is bad: {error}")
        except AnchorError as error:
            sentence = f"the collector at {self._address} cannot go on: {error}"
            return Failure(FailureKind.HERE, sentence)
        finally:
            channel.close()
            if stream.answered_at is not None:
                self._away_since = stream.answered_at if stream.silent else time.monotonic()
        return (
            None if self._over else Failure(FailureKind.LINE, f"{self._address} ended the stream")
        )

    def _refuse(self, fault: Failure) -> None:
        with self._changed:
            self.refused = fault
            self.trouble = fault.sentence
            self.finished = True
            self._changed.notify_all()

    def _rested(self) -> bool:
        """Wait until the outbox has something to send, or sending is over.

        Returns False, at once, if the outbox has something to send already; else True.
        """
        with self._changed:
            if not self._outbox.at_rest:
                return False
            self._changed.wait_for(lambda: self._over or not self._outbox.at_rest)
            return True

    def _pause(self, failures: int, fault: Failure) -> None:
        """Wait a random time before the next try, so that many trainers do not connect at once.

        The longest time grows with `failures`, the number of failures in a row. A change of
        `closing` or `finished` ends the wait. fault: the last failure, noted as `trouble`.
        """
        with self._changed:
            self.trouble = fault.sentence
            closing = self.closing
            longest = _LAST_BACKOFF[fault.kind.full, closing]
            # 2.0 to a large power overflows after a few hours without a collector.
            longest = min(longest, self._route.seconds / 4)
            seconds = random.uniform(0, min(longest, _FIRST_BACKOFF * 2.0 ** min(failures, 16)))
            self._changed.wait_for(lambda: self.finished or self.closing != closing, seconds)
