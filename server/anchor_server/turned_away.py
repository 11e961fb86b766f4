"""Counts and logs callers that are turned away: with no valid token, or in the TLS handshake."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import Final
from urllib.parse import unquote

from anchor_server.counters import CollectorCounters

__all__ = ["TurnedAway"]

_log = logging.getLogger("anchor_server")

_QUIET_SECONDS: Final = 60.0  # between two warnings about one machine
_MACHINES: Final = 1024  # whose last warning is remembered, at most

_TOKEN: Final = "refused a call without the token"
_HANDSHAKE: Final = (
    "a connection ended before a call came over it: its TLS handshake failed (a certificate that "
    "one end does not trust, or no TLS at all), or it was closed"
)


class TurnedAway:
    """Counts and logs callers that were turned away, for want of a token or in the TLS handshake.

    For each machine, at most one warning a minute is logged for each of the two causes; further
    cases are logged as INFO.
    """

    def __init__(self, tally: CollectorCounters) -> None:
        self._tally = tally
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[str, str], float] = OrderedDict()

    def refuse_token(self, peer: str) -> None:
        """Counts and logs a call that showed no token, or a wrong one.

        peer: the client's address and port, as gRPC writes them.
        """
        self._tell("token", _TOKEN, peer)

    def refuse_handshake(self, peer: str) -> None:
        """Counts and logs, as a failed TLS handshake, a connection that ended before any call.

        peer: the client's address and port, as gRPC writes them.
        """
        self._tell("handshake", _HANDSHAKE, peer)

    def _tell(self, kind: str, sentence: str, peer: str) -> None:
        self._tally.refuse(kind)
        first = self._is_first((peer.rpartition(":")[0], kind))
        _log.log(
            logging.WARNING if first else logging.INFO, sentence, extra={"peer": unquote(peer)}
        )

    def _is_first(self, machine: tuple[str, str]) -> bool:
        now = time.monotonic()
        with self._lock:
            last = self._logged.get(machine)
            if last is not None and now - last < _QUIET_SECONDS:
                return False
            self._logged[machine] = now
            self._logged.move_to_end(machine)
            while len(self._logged) > _MACHINES:
                self._logged.popitem(last=False)
            return True
