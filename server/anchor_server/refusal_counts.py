"""Counts the refusals of a collector by kind, and logs the first one of each caller."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final, NoReturn
from urllib.parse import unquote

import grpc

from anchor_server.counters import CollectorCounters
from anchor_server.refusals import Refusal, abort, refusal_of
from anchorlib.wire import FailureKind, code_of

__all__ = ["Caller", "RefusalCounts"]

_log = logging.getLogger("anchor_server")

_CALLERS: Final = 1024  # whose refusals are remembered, at most
_QUIET_SECONDS: Final = 60.0  # between two warnings of one kind, where records were taken between
_LINES: Final = 60  # warnings in as many seconds: a client may invent any number of run names

# Streams that end for these reasons are no trouble: nobody has to do anything.
_ORDINARY: Final = frozenset({FailureKind.STOPPING, FailureKind.REPLACED, FailureKind.IDLE})


@dataclass(slots=True)
class Caller:
    """Who calls, as the log shows it.

    peer: the client's address and port, as gRPC writes them.
    run, rank: what the call has named so far; "" and None before that.
    identity: the name of the token or certificate in the access file; "" where there is none.
    """

    peer: str
    run: str = ""
    rank: int | None = None
    identity: str = ""

    @property
    def log_fields(self) -> dict[str, object]:
        """What is known of the caller, as the extra fields of a log record."""
        fields: dict[str, object] = {"peer": self.peer}
        if self.identity:
            fields["identity"] = self.identity
        if self.run:
            fields["run"] = self.run
        if self.rank is not None:
            fields["rank"] = self.rank
        return fields

    @property
    def machine(self) -> str:
        """The client's address without its port, as "127.0.0.1"."""
        return unquote(self.peer).partition(":")[2].rpartition(":")[0].strip("[]")

    @property
    def key(self) -> tuple[str, str]:
        """The machine, and the token with the run: what stays when a caller calls again."""
        return self.peer.rpartition(":")[0], f"{self.identity} {self.run}"


class RefusalCounts:
    """Counts and logs the refusals of all calls; thread-safe.

    A refusal is an error that ends a call.
    """

    def __init__(self, tally: CollectorCounters) -> None:
        self._tally = tally
        self._lock = threading.Lock()
        self._said: OrderedDict[tuple[str, str], dict[FailureKind, float]] = OrderedDict()
        self._lines: deque[float] = deque(maxlen=_LINES)
        self._unsaid = 0

    def refuse(self, context: grpc.ServicerContext, error: Exception, caller: Caller) -> NoReturn:
        """Counts and logs the refusal that fits an error, and ends the call with that refusal.

        context: gRPC's object for the call. caller: who calls, for the log.
        """
        refusal = refusal_of(error)
        self.tell(refusal, caller)
        abort(context, refusal)

    def tell(self, refusal: Refusal, caller: Caller) -> None:
        """Counts and logs a refusal: a warning for the caller's first of this kind, then INFO.

        A missing right is logged as a warning each time, because each time another right may be
        missing. The end of a stream in the ordinary way (idle, replaced, the collector stops) is
        logged as INFO. There are at most 60 warnings a minute, for all callers together; beyond
        them refusals are logged as INFO.
        """
        self._tally.refuse(refusal.kind.value)
        said = {**caller.log_fields, "kind": refusal.kind.value, "code": code_of(refusal.kind).name}
        if refusal.kind in _ORDINARY:
            _log.info("stream ended: %s", refusal.text, extra=said)
            return
        first, unsaid = self._first(refusal.kind, caller)
        more = f" ({unsaid} refusals before this one were not told)" if unsaid else ""
        _log.log(
            logging.WARNING if first else logging.INFO,
            "refused: %s%s",
            refusal.text,
            more,
            extra=said,
        )

    def passed(self, caller: Caller) -> None:
        """Forgets the refusals of a caller that are over a minute old.

        The push service calls this when records of the caller were stored. So the next refusal of
        the same kind is logged as a warning again.
        """
        if caller.key not in self._said:
            return
        now = time.monotonic()
        with self._lock:
            kinds = self._said.get(caller.key, {})
            for kind in [one for one, at in kinds.items() if now - at > _QUIET_SECONDS]:
                del kinds[kind]

    def _first(self, kind: FailureKind, caller: Caller) -> tuple[bool, int]:
        """Returns whether to log a refusal as a warning, and how many warnings were left out.

        Warnings are left out (logged as INFO) when there are more than 60 in one minute. The number
        counts those that were left out since the last warning; it is 0 where the refusal is not to
        be logged as a warning.
        """
        now = time.monotonic()
        with self._lock:
            kinds = self._said.setdefault(caller.key, {})
            self._said.move_to_end(caller.key)
            while len(self._said) > _CALLERS:
                self._said.popitem(last=False)
            if kind in kinds and kind is not FailureKind.FORBIDDEN:
                return False, 0
            if len(self._lines) == _LINES and now - self._lines[0] < _LINES:
                self._unsaid += 1
                return False, 0
            kinds[kind] = now
            self._lines.append(now)
            unsaid, self._unsaid = self._unsaid, 0
            return True, unsaid
