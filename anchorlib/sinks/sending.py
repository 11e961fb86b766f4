"""Carries what an outbox has to say to a collector, through any number of broken connections."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Final

import grpc

from anchorlib.errors import AnchorError
from anchorlib.wire import (
    KEEPALIVE_SECONDS,
    Address,
    Credentials,
    DamagedError,
    Failure,
    Hello,
    Outbox,
    PushStream,
    failure,
    open_channel,
)

__all__ = ["Sender"]

_log = logging.getLogger("anchorlib")

_FIRST_BACKOFF: Final = 0.1  # seconds; doubled with each failure
_LAST_BACKOFF: Final = 5.0
_CLOSING_BACKOFF: Final = 0.5  # a close has little time
_BUSY: Final = "is being written by"
_BUSY_SECONDS: Final = 6.0 * KEEPALIVE_SECONDS
_HOPELESS: Final = 10  # refusals of the same record, one after another


class Sender:
    """One outbox, one collector; `run` on a thread of its own until it is over.

    changed: guards the outbox and everything here.
    on_trouble: called once each time that a collector which answered no longer does; without the
        lock.

    trouble: the last failure, in a sentence.
    refusal: the one that will not go away; nothing is sent after it.
    finished: nothing is sent any more. Set it, and notify, to end everything.
    closing: set it, and notify, where there is little time left.
    follows: whoever holds the rank is known to have ended.
    """

    def __init__(  # the parts it connects
        self,
        address: Address,
        hello: Hello,
        outbox: Outbox,
        changed: threading.Condition,
        credentials: Credentials,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.retries = 0
        self.trouble = ""
        self.refusal = ""
        self.finished = False
        self.closing = False
        self.follows = False
        self._address = address
        self._hello = hello
        self._outbox = outbox
        self._changed = changed
        self._credentials = credentials
        self._on_trouble = on_trouble
        self._stream: PushStream | None = None
        self._busy_since = 0.0

    def run(self) -> None:
        """Send until the collector has closed the run, it refused, or `finished` is set."""
        try:
            self._send()
        except Exception as fault:  # noqa: BLE001  # training goes on whatever happens here
            _log.exception("anchorlib: a defect in the sender")
            self._refuse(f"sending to {self._address} failed: {fault!r}")

    def cancel(self) -> None:
        """End the stream that there is, from any thread."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _send(self) -> None:
        failures = stuck = 0
        doubted = ""
        warned = False
        mark = -1
        while not self._over:
            fault = self._connect()
            if fault is None:
                continue
            if self._outbox.resumed:  # it had answered before it failed
                failures, warned = 0, False
            moved, mark = self._outbox.committed != mark, self._outbox.committed
            failures += 1
            stuck = 0 if moved or fault.passing or fault.permanent else stuck + 1
            self.retries += 1
            refused = fault.permanent and not self._may_pass(fault)
            # A line that flips bits can make a refusal of anything, but hardly the same one twice.
            doubtful = refused and fault.told and fault.sentence != doubted
            doubted = fault.sentence
            if (refused and not doubtful) or stuck >= _HOPELESS:
                self._refuse(fault.sentence)
                return
            if not (warned or doubtful or self._over):
                warned = True
                self._on_trouble(fault.sentence)
            self._pause(failures, fault)

    def _may_pass(self, fault: Failure) -> bool:
        """Whether what holds the rank may be the attempt before this one, not yet missed there.

        A collector notices only after a while that a machine or the line to it is gone.
        """
        if not (self.follows or self._hello.resume) or _BUSY not in fault.sentence:
            return False
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        return now - self._busy_since < _BUSY_SECONDS

    @property
    def _over(self) -> bool:
        return self.finished or self._outbox.closed

    def _connect(self) -> Failure | None:
        """One stream, until it ends; what went wrong with it, None where nothing did."""
        try:
            channel = open_channel(self._address, self._credentials)
        except AnchorError as error:
            return Failure(str(error), permanent=True)
        try:
            stream = PushStream(channel, self._hello, self._outbox, self._changed)
            with self._changed:
                if self.finished:
                    return None
                self._stream = stream
            stream.run(self._credentials.metadata)
        except grpc.RpcError as error:
            if stream.silent:
                return Failure(f"{self._address} has not answered for a long time", passing=True)
            return failure(self._address, error)
        except DamagedError as error:
            return Failure(f"the line to {self._address} is bad: {error}", passing=True)
        except AnchorError as error:
            sentence = f"the collector at {self._address} cannot go on: {error}"
            return Failure(sentence, permanent=True)
        finally:
            channel.close()
        return None if self._over else Failure(f"{self._address} ended the stream", passing=True)

    def _refuse(self, sentence: str) -> None:
        with self._changed:
            self.refusal = self.trouble = sentence
            self.finished = True
            self._changed.notify_all()

    def _pause(self, failures: int, fault: Failure) -> None:
        """Waits before the next try: a random time, so that many trainers do not come at once."""
        with self._changed:
            self.trouble = fault.sentence
            closing = self.closing
            longest = _CLOSING_BACKOFF if closing else _LAST_BACKOFF
            # 2.0 to a large power overflows after a few hours without a collector.
            seconds = random.uniform(0, min(longest, _FIRST_BACKOFF * 2.0 ** min(failures, 16)))
            self._changed.wait_for(lambda: self.finished or self.closing != closing, seconds)
