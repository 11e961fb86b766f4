"""What a collector refuses: counted by kind, and told once to whoever runs it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final, NoReturn
from urllib.parse import unquote

import grpc

from anchor_server.refusals import Refusal, abort, refusal_of
from anchor_server.tally import Tally
from anchorlib.wire import Kind, code_of

__all__ = ["Caller", "Trouble"]

_log = logging.getLogger("anchor_server")

_CALLERS: Final = 1024  # that are remembered
_QUIET_SECONDS: Final = 60.0  # before the same is told again, although it passed meanwhile
_LINES: Final = 60  # in as many seconds: names of runs are clients' words, and may be many

# How streams end that nobody has to look after.
_ORDINARY: Final = frozenset({Kind.STOPPING, Kind.REPLACED, Kind.IDLE})


@dataclass(slots=True)
class Caller:
    """Who calls: gRPC's name of the other end, and of which run and rank it has spoken so far.

    identity: the name of the token or certificate that was shown, where an access file names them.
    """

    peer: str
    run: str = ""
    rank: int | None = None
    identity: str = ""

    @property
    def told(self) -> dict[str, object]:
        """As the fields of a line of the log."""
        told: dict[str, object] = {"peer": self.peer}
        if self.identity:
            told["identity"] = self.identity
        if self.run:
            told["run"] = self.run
        if self.rank is not None:
            told["rank"] = self.rank
        return told

    @property
    def machine(self) -> str:
        """The address in gRPC's name of the other end, "ipv4:127.0.0.1:4242"."""
        return unquote(self.peer).partition(":")[2].rpartition(":")[0].strip("[]")

    @property
    def key(self) -> tuple[str, str]:
        """The machine, and who wants which run: each new connection has another port."""
        return self.peer.rpartition(":")[0], f"{self.identity} {self.run}"


class Trouble:
    """Refusals of all calls; any thread may tell one."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._lock = threading.Lock()
        self._said: OrderedDict[tuple[str, str], dict[Kind, float]] = OrderedDict()
        self._lines: deque[float] = deque(maxlen=_LINES)
        self._unsaid = 0

    def refuse(self, context: grpc.ServicerContext, error: Exception, caller: Caller) -> NoReturn:
        """End a call with what `error` means, after it was counted and told."""
        refusal = refusal_of(error)
        self.tell(refusal, caller)
        abort(context, refusal)

    def tell(self, refusal: Refusal, caller: Caller) -> None:
        """Count a refusal; a warning says so the first time that this caller meets this kind.

        What a caller has no right to is told each time: it is another thing each time.
        """
        self._tally.refuse(refusal.kind.value)
        said = {**caller.told, "kind": refusal.kind.value, "code": code_of(refusal.kind).name}
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
        """This caller's records are taken again: what is refused from now on is news."""
        if caller.key not in self._said:
            return
        now = time.monotonic()
        with self._lock:
            kinds = self._said.get(caller.key, {})
            for kind in [one for one, at in kinds.items() if now - at > _QUIET_SECONDS]:
                del kinds[kind]

    def _first(self, kind: Kind, caller: Caller) -> tuple[bool, int]:
        """Whether this is told as a warning, and how many were not for want of room."""
        now = time.monotonic()
        with self._lock:
            kinds = self._said.setdefault(caller.key, {})
            self._said.move_to_end(caller.key)
            while len(self._said) > _CALLERS:
                self._said.popitem(last=False)
            if kind in kinds and kind is not Kind.FORBIDDEN:
                return False, 0
            if len(self._lines) == _LINES and now - self._lines[0] < _LINES:
                self._unsaid += 1
                return False, 0
            kinds[kind] = now
            self._lines.append(now)
            unsaid, self._unsaid = self._unsaid, 0
            return True, unsaid
