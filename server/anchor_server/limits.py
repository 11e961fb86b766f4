"""What writers may spend: all of a collector together, or all that show one token.

Each bound has its own refusal, which passes: a trainer keeps what it has in its spool and comes
back, ever more seldom, until there is room. Only bytes of a run are otherwise: beyond them values
are left out and summaries kept, because a run that never shrinks would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from anchor_server.refusals import Refusal
from anchorlib.errors import OptionError
from anchorlib.spool import parse_bytes
from anchorlib.wire import Kind

__all__ = ["LIMIT_KEYS", "NO_LIMITS", "Limits", "Meter", "Shares", "read_limits"]

_BURST_SECONDS: Final = 4.0  # of bytes that may come at once
_SHARING_SECONDS: Final = 30.0  # that a token counts: twice what a refused trainer waits at most
_WHOLE: Final = ("max_streams", "max_runs", "max_run_inodes")
_SIZES: Final = ("max_rate", "max_run_size")
LIMIT_KEYS: Final = frozenset({*_WHOLE, *_SIZES})


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no bound.

    streams: open at once. rate: bytes a second that streams send, together. runs: that there are.
    run_bytes, run_files: of one run on disk, all ranks together; files with folders, as inodes are.
    """

    streams: int | None = None
    rate: int | None = None
    runs: int | None = None
    run_bytes: int | None = None
    run_files: int | None = None


NO_LIMITS: Final = Limits()


def read_limits(table: Mapping[str, Any], where: str) -> Limits:
    """The limits in a table of an access file. Raises OptionError, which begins with `where`."""
    for key in LIMIT_KEYS & set(table):
        value = table[key]
        number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not number and not (key in _SIZES and isinstance(value, str)):
            form = "a size, as '10MB'" if key in _SIZES else "a number"
            raise OptionError(f"{where}: {key} is {form}, and more than nothing")
    sizes = {key: parse_bytes(str(table[key]), f"{where}: {key}") for key in _SIZES if key in table}
    if any(size <= 0 for size in sizes.values()):
        raise OptionError(f"{where}: a size is more than nothing")
    return Limits(
        streams=table.get("max_streams"),
        rate=sizes.get("max_rate"),
        runs=table.get("max_runs"),
        run_bytes=sizes.get("max_run_size"),
        run_files=table.get("max_run_inodes"),
    )


class Meter:
    """Counts the bytes that writers send against their rates; any thread may add.

    What was sent is never refused: the stream that sends too much ends after its acknowledgement,
    and is let in again once half of a burst may come. So each stream that is let in gets on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}  # bytes that may come, and as of when

    def check(self, whose: str, rate: int | None) -> None:
        """Raises a Refusal where a stream cannot begin just now."""
        if rate is not None and self._spend(whose, rate, 0) < rate * _BURST_SECONDS / 2:
            raise _too_fast(whose, rate)

    def spend(self, whose: str, rate: int | None, nbytes: int) -> None:
        """Counts bytes that came. Raises a Refusal where they were more than may come."""
        if rate is not None and self._spend(whose, rate, nbytes) < 0:
            raise _too_fast(whose, rate)

    def _spend(self, whose: str, rate: int, nbytes: int) -> float:
        now, most = self._clock(), rate * _BURST_SECONDS
        with self._lock:
            left, since = self._left.get(whose, (most, now))
            left = min(left + (now - since) * rate, most) - nbytes
            self._left[whose] = left, now
            return left


class Shares:
    """A rate that all tokens share: who sends less than an equal part is never made to wait.

    Each token that came in the last while has a part of its own; where all of them together send
    too much, those are refused who are beyond theirs. What one leaves, the others may have.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._meter = Meter(clock)
        self._lock = threading.Lock()
        self._came: dict[str, float] = {}

    def check(self, name: str) -> None:
        """Raises a Refusal where a stream of this token cannot begin just now."""
        self._ask(self._meter.check, name)

    def spend(self, name: str, nbytes: int) -> None:
        """Counts bytes that came. Raises a Refusal where they were more than may come."""
        self._ask(lambda whose, rate: self._meter.spend(whose, rate, nbytes), name)

    def _ask(self, ask: Callable[[str, int], None], name: str) -> None:
        if self._rate is None:
            return
        own = _refusal(ask, f"token '{name}'", max(1, self._rate // self._sharing(name)))
        whole = _refusal(ask, "all streams of this collector", self._rate)
        if own is not None and whole is not None:
            raise whole

    def _sharing(self, name: str) -> int:
        """How many tokens came lately, this one among them."""
        now = self._clock()
        with self._lock:
            self._came[name] = now
            gone = [one for one, at in self._came.items() if now - at > _SHARING_SECONDS]
            for one in gone:
                del self._came[one]
            return len(self._came)


def _refusal(ask: Callable[[str, int], None], whose: str, rate: int) -> Refusal | None:
    try:
        ask(whose, rate)
    except Refusal as refusal:
        return refusal
    return None


def _too_fast(whose: str, rate: int) -> Refusal:
    return Refusal(
        Kind.RATE,
        f"{whose} send more than {rate} bytes a second, which is their limit (max_rate): they go "
        "on a little later",
    )
