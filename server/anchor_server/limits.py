"""Limits on the streams, bytes and runs of one token, and of all tokens of a collector together.

A writer beyond a limit is refused for a while: the trainer keeps its records in its spool (a queue
on its disk) and connects again, after ever longer pauses, until there is room. Only the limit on
the bytes of a run is different: beyond it values are left out and summaries kept, because a run
never shrinks, so that its trainer would wait for ever.
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
from anchorlib.wire import FailureKind

__all__ = ["LIMIT_KEYS", "NO_LIMITS", "Limits", "Meter", "SharedRate", "read_limits"]

_BURST_SECONDS: Final = 4.0  # a burst: so many seconds' bytes may come at once
# How long a token counts as sending; a refused trainer waits half of this at most.
_SHARING_SECONDS: Final = 30.0
_WHOLE: Final = ("max_streams", "max_runs", "max_run_inodes")
_SIZES: Final = ("max_rate", "max_run_size")
LIMIT_KEYS: Final = frozenset({*_WHOLE, *_SIZES})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one token, or of a whole collector; None is no limit.

    streams: how many streams (Push calls of trainers) may be open at once.
    rate: most bytes a second that all streams of the token (or the collector) send together.
    runs: how many runs may be in the store; for a token, how many of those that it has made.
    run_bytes, run_files: most bytes and most files of one run on disk, all ranks together; folders
        count as files, because both take inodes.
    """

    streams: int | None = None
    rate: int | None = None
    runs: int | None = None
    run_bytes: int | None = None
    run_files: int | None = None


NO_LIMITS: Final = Limits()


def read_limits(table: Mapping[str, Any], where: str) -> Limits:
    """Reads the limits in one [[token]] table of an access file.

    Raises OptionError, whose text begins with `where`, for a value that is no limit.
    """
    for key in LIMIT_KEYS & set(table):
        value = table[key]
        number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not number and not (key in _SIZES and isinstance(value, str)):
            form = "a size above zero, as '10MB'" if key in _SIZES else "a whole number above zero"
            raise OptionError(f"{where}: {key} must be {form}")
    sizes = {key: parse_bytes(str(table[key]), f"{where}: {key}") for key in _SIZES if key in table}
    if any(size <= 0 for size in sizes.values()):
        raise OptionError(f"{where}: a size must be above zero")
    return Limits(
        streams=table.get("max_streams"),
        rate=sizes.get("max_rate"),
        runs=table.get("max_runs"),
        run_bytes=sizes.get("max_run_size"),
        run_files=table.get("max_run_inodes"),
    )


class Meter:
    """Compares the bytes that writers send with their rates, by token buckets; thread-safe.

    A token bucket is a count of bytes that may still be sent; it fills at the rate, up to the bytes
    of four seconds, and what is sent is taken out. (It has nothing to do with access tokens.) Each
    group of streams that has a rate has a bucket, for example all streams of one access token.

    Records that were sent are never refused: a stream that sends too much ends after their
    acknowledgement, and is admitted again once the bucket is half full. So each admitted stream
    makes progress.

    clock: returns the present time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # bytes that may come, and the time of that count

    def check(self, whose: str, rate: int | None) -> None:
        """Raises a Refusal where a stream may not begin now: its token bucket is under half full.

        whose: whose bucket it is, in words for the refusal, such as "streams of token 'a'".
        rate: the bytes a second at which the bucket fills; None is no limit.
        """
        if rate is not None and self._spend(whose, rate, 0) < rate * _BURST_SECONDS / 2:
            raise _too_fast(whose, rate)

    def spend(self, whose: str, rate: int | None, nbytes: int) -> None:
        """Takes the bytes that arrived out of a token bucket.

        Raises a Refusal where the bucket held fewer bytes; they are taken out all the same, so that
        the count becomes negative.

        whose: whose bucket it is, in words for the refusal, such as "streams of token 'a'".
        rate: the bytes a second at which the bucket fills; None is no limit.
        """
        if rate is not None and self._spend(whose, rate, nbytes) < 0:
            raise _too_fast(whose, rate)

    def _spend(self, whose: str, rate: int, nbytes: int) -> float:
        now, most = self._clock(), rate * _BURST_SECONDS
        with self._lock:
            left, since = self._left.get(whose, (most, now))
            left = min(left + (now - since) * rate, most) - nbytes
            self._left[whose] = left, now
            return left


class SharedRate:
    """A collector's rate (bytes a second), shared by its tokens; thread-safe.

    Each access token that sent something in the last 30 s has an equal share, and a token that
    sends less than its share is never refused. Where all tokens together send too much, only tokens
    beyond their share are refused. So what some tokens leave of their shares is free for the other
    tokens.

    rate: bytes a second; None is no limit. clock: returns the present time in seconds.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._meter = Meter(clock)
        self._lock = threading.Lock()
        self._came: dict[str, float] = {}

    def check(self, name: str) -> None:
        """Raises a Refusal where a stream of the token `name` may not begin now.

        The stream may not begin where both buckets, that of all tokens together and that of this
        token's share, are under half full. From this call on the token counts as one that sends.
        """
        self._ask(self._meter.check, name)

    def spend(self, name: str, nbytes: int) -> None:
        """Counts bytes that arrived from the token `name`.

        Raises a Refusal where all tokens together have sent more than the rate allows, and the
        token `name` has sent more than its share.
        """
        self._ask(lambda whose, rate: self._meter.spend(whose, rate, nbytes), name)

    def _ask(self, ask: Callable[[str, int], None], name: str) -> None:
        if self._rate is None:
            return
        own = _refusal(ask, f"token '{name}'", max(1, self._rate // self._sharing(name)))
        whole = _refusal(ask, "all streams of this collector", self._rate)
        if own is not None and whole is not None:
            raise whole

    def _sharing(self, name: str) -> int:
        """Notes that the token `name` sends now; returns how many tokens sent in the last 30 s."""
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
        FailureKind.RATE,
        f"{whose} send more than {rate} bytes a second, which is their limit (max_rate): they go "
        "on a little later",
    )
