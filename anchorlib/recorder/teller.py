"""Definitions and statements on their way into the ring, where they lie among the records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from anchorlib.record import Edges
from anchorlib.recorder.layout import SlotKind, Word
from anchorlib.recorder.losses import Losses
from anchorlib.recorder.ring import Producer, Ring
from anchorlib.recorder.statements import Statements
from anchorlib.recorder.told import layout_definition, statement, stream_definition
from anchorlib.recorder.worker import Worker

__all__ = ["TOLD_BYTES", "Teller"]

TOLD_BYTES: Final = 1 << 20
"""Room in a ring beside that for records."""

_SAY_SECONDS: Final = 0.05  # between two statements of gaps and lineage
_TOGETHER: Final = 100  # statements of gaps, or of lineage, in one slot


class Teller:
    """Places definitions and statements in a ring. The queue's lock guards all of it.

    kept: of each stream that was defined, its series, and whether its mode keeps values.
    waits: whether a definition waits for room. pause: lets others, and the drain, run for a moment.
    """

    def __init__(  # noqa: PLR0913  # the parts it connects
        self,
        ring: Ring,
        producer: Producer,
        worker: Worker,
        statements: Statements,
        losses: Losses,
        waits: Callable[[], bool],
        pause: Callable[[], None],
    ) -> None:
        self._ring, self._producer, self._worker = ring, producer, worker
        self._statements, self._losses = statements, losses
        self._waits, self._pause = waits, pause
        self._streams: dict[tuple[str, str, str, str], int] = {}
        self.kept: list[tuple[tuple[str, str, str], bool]] = []
        self._layouts: dict[tuple[str, tuple[int, ...]], int] = {}
        self._unsaid: deque[bytes] = deque()
        self._said = 0.0

    # -- definitions

    def stream(self, key: tuple[str, str, str, str], *, keeps: bool) -> int:
        """The number of a series (name, kind, mode) in one phase; -1 where there is no room."""
        number = self._streams.get(key, -1)
        following = len(self._streams)
        if number < 0 and self._define(stream_definition(following, key, keeps=keeps)):
            self.kept[following:] = [(key[:3], keeps)]
            number = self._streams[key] = following
        return number

    def layout(self, dtype: str, shape: tuple[int, ...]) -> int:
        """The number of a dtype and shape; -1 where there is no room to define it now."""
        key = (dtype, shape)
        number = self._layouts.get(key, -1)
        following = len(self._layouts)
        if number < 0 and self._define(layout_definition(following, *key)):
            number = self._layouts[key] = following
        return number

    def _define(self, text: bytes) -> bool:
        while not self._tell(text, defines=True):
            if self._producer.placing or not self._waits():
                return False
            self._pause()
        return True

    def _tell(self, text: bytes, *, defines: bool = False) -> bool:
        """Place a statement; whether there was room."""
        producer = self._producer
        if producer.placing:
            return False
        with producer:
            pos = producer.place(len(text), self._ring.payload_bytes)
            if pos >= 0:
                producer.write(pos, text)
                if defines:  # before a drain can have consumed it, and can have died
                    self._worker.defined(self._ring[Word.PUBLISHED], text)
                producer.publish(pos, len(text), 0, 0, (0, 0, 0), 0, kind=SlotKind.TOLD)
        return pos >= 0

    # -- statements

    def say_sometimes(self) -> None:
        """Place what is to be said, unless something was a moment ago."""
        now = time.monotonic()
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            self.say(0.0)

    def say(self, seconds: float | None) -> None:
        """Place what is to be said in the ring; wait for room as long as `seconds`."""
        self._write_down()
        end = None if seconds is None else time.monotonic() + seconds
        while self._unsaid and not (self._worker.is_over or self._producer.placing):
            if self._tell(self._unsaid[0]):
                self._unsaid.popleft()
            elif len(self._unsaid[0]) > self._ring.payload_bytes:
                self._losses.warn_once(
                    "large", f"a statement of {len(self._unsaid.popleft())} bytes was left out"
                )
            elif end is None or time.monotonic() < end:
                self._pause()
            else:
                break

    def _write_down(self) -> None:
        telling = self._statements.take(again=False)
        for at in range(0, len(telling.gaps), _TOGETHER):
            self._unsaid.append(statement(telling.gaps[at : at + _TOGETHER], (), {}))
        for at in range(0, len(telling.edges), _TOGETHER):
            self._unsaid.extend(_lineage(telling.edges[at : at + _TOGETHER]))
        if telling.header:
            self._unsaid.append(statement((), (), telling.header))
        self._unsaid.extend(statement((), (), {}, [one]) for one in telling.operations)


def _lineage(edges: list[Edges]) -> list[bytes]:
    """Statements of them, none larger than any ring but where one value alone takes more."""
    text = statement((), edges, {})
    if len(text) <= TOLD_BYTES or len(edges) < 2:
        return [text]
    middle = len(edges) // 2
    return _lineage(edges[:middle]) + _lineage(edges[middle:])
