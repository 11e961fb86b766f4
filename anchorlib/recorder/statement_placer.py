"""Places definitions and statements in the ring, among the records, for the drain to read.

A definition says which series and phase, or which dtype and shape, a number in a record's slot
stands for. Statements say what does not stand in the records: gaps (counts of what was not
recorded), lineage (what each value was computed from), entries of the run header, and traced
operations. The drain empties the ring, in a thread or process that is called the worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from anchorlib.operations import Entry
from anchorlib.record import Edges
from anchorlib.recorder.layout import SlotKind, Word
from anchorlib.recorder.lost_records import LostRecords
from anchorlib.recorder.ring import Producer, Ring
from anchorlib.recorder.statement_json import layout_definition, statement, stream_definition
from anchorlib.recorder.statements import PendingStatements
from anchorlib.recorder.worker import Worker

__all__ = ["STATEMENT_BYTES", "StatementPlacer"]

STATEMENT_BYTES: Final = 1 << 20
"""Bytes of a ring's payload for definitions and statements, beside the room for records."""

_PAUSE_SECONDS: Final = 0.05  # at least, between two times that statements are placed
_STRUCTURES: Final = 64  # texts that are kept, of some 100 kB each at most
_TOGETHER: Final = 100  # gaps, or statements of lineage, in one slot


class StatementPlacer:
    """Places definitions (of streams and layouts) and statements in a ring, as JSON.

    The caller holds the queue's lock. A stream is one series (name, kind, mode) in one phase.

    waits: returns whether to wait where the ring has no room for a definition; if not, the
    definition is not made.
    pause: releases the lock for a moment, so that the drain can make room.

    kept: for each stream number, (the series, whether its mode keeps values).
    """

    def __init__(  # noqa: PLR0913  # the objects that it connects
        self,
        ring: Ring,
        producer: Producer,
        worker: Worker,
        statements: PendingStatements,
        losses: LostRecords,
        waits: Callable[[], bool],
        pause: Callable[[], None],
    ) -> None:
        self._ring, self._producer, self._worker = ring, producer, worker
        self._statements, self._losses = statements, losses
        self._waits, self._pause = waits, pause
        self._streams: dict[tuple[str, str, str, str], int] = {}
        self.kept: list[tuple[tuple[str, str, str], bool]] = []
        self._layouts: dict[tuple[str, tuple[int, ...]], int] = {}
        self._unplaced: deque[bytes] = deque()
        self._structures: dict[str, bytes] = {}
        self._last_placed = 0.0

    # -- definitions

    def stream(self, key: tuple[str, str, str, str], *, keeps: bool) -> int:
        """Return the number of a stream (one series in one phase).

        A stream that has no number yet gets the next one, and its definition is placed in the ring.
        Returns -1 if the ring has no room for the definition now.
        key: (name, kind, mode, phase). keeps: whether the mode keeps values.
        """
        number = self._streams.get(key, -1)
        following = len(self._streams)
        if number < 0 and self._define(stream_definition(following, key, keeps=keeps)):
            self.kept[following:] = [(key[:3], keeps)]
            number = self._streams[key] = following
        return number

    def layout(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Return the layout number of a dtype and shape.

        A dtype and shape without a number get the next one, and its definition is placed in the
        ring. Returns -1 if the ring has no room for the definition now.
        """
        key = (dtype, shape)
        number = self._layouts.get(key, -1)
        following = len(self._layouts)
        if number < 0 and self._define(layout_definition(following, *key)):
            number = self._layouts[key] = following
        return number

    def _define(self, text: bytes) -> bool:
        while not self._place(text, defines=True):
            if self._producer.placing or not self._waits():
                return False
            self._pause()
        return True

    def _place(self, text: bytes, *, defines: bool = False) -> bool:
        """Place the JSON of a statement or definition; return whether it was placed.

        It is not placed where the ring has no room, or while another record is being placed.
        defines: whether `text` is a definition, which the worker keeps as well: a drain that
        replaces a dead one needs it.
        """
        producer = self._producer
        if producer.placing:
            return False
        with producer:
            pos = producer.place(len(text), self._ring.payload_bytes)
            if pos >= 0:
                producer.write(pos, text)
                # The worker keeps the definition before a drain can consume its slot and die.
                if defines:
                    self._worker.defined(self._ring[Word.PUBLISHED], text)
                producer.publish(pos, len(text), 0, 0, (0, 0, 0), 0, kind=SlotKind.STATEMENT)
        return pos >= 0

    # -- statements

    def place_statements_if_due(self) -> None:
        """Place the waiting statements in the ring, unless this did so less than 50 ms ago.

        Does not wait for room: statements without room go on waiting.
        """
        now = time.monotonic()
        if now - self._last_placed >= _PAUSE_SECONDS:
            self._last_placed = now
            self.place_statements(0.0)

    def place_statements(self, seconds: float | None) -> None:
        """Place the waiting statements in the ring, in order, until one finds no room in time.

        That statement and those behind it go on waiting. A statement that is larger than the
        ring's payload is dropped, with a warning.
        seconds: how long to wait for room, for all statements together; None: as long as it takes.
        """
        self._encode_pending()
        end = None if seconds is None else time.monotonic() + seconds
        while self._unplaced and not (self._worker.is_over or self._producer.placing):
            if self._place(self._unplaced[0]):
                self._unplaced.popleft()
            elif len(self._unplaced[0]) > self._ring.payload_bytes:
                self._losses.warn_once(
                    "large", f"a statement of {len(self._unplaced.popleft())} bytes was left out"
                )
            elif end is None or time.monotonic() < end:
                self._pause()
            else:
                break

    def _encode_pending(self) -> None:
        batch = self._statements.take(again=False)
        for at in range(0, len(batch.gaps), _TOGETHER):
            self._unplaced.append(statement(batch.gaps[at : at + _TOGETHER], (), {}))
        for at in range(0, len(batch.edges), _TOGETHER):
            self._unplaced.extend(_lineage(batch.edges[at : at + _TOGETHER]))
        if batch.header:
            self._unplaced.append(statement((), (), batch.header))
        self._unplaced.extend(map(self._of_operations, batch.operations))

    def _of_operations(self, entry: Entry) -> bytes:
        """Return the JSON of a statement with one entry of the log of traced operations.

        An entry (a JSON object) may be a structure, which describes the operations of a step. Each
        traced step states its structure again. Structures are large, so their JSON is cached by
        the structure's hash.
        """
        key = entry.get("structure")
        if key is None:
            return statement((), (), {}, [entry])
        text = self._structures.get(key)
        if text is None:
            if len(self._structures) >= _STRUCTURES:
                self._structures.clear()
            text = self._structures[key] = statement((), (), {}, [entry])
        return text


def _lineage(edges: list[Edges]) -> list[bytes]:
    """Return JSON texts that state `edges`, what each value was computed from, in order.

    Each text holds as many of `edges` as fit into STATEMENT_BYTES, found by halving; a text with
    the edges of a single value may be larger.
    """
    text = statement((), edges, {})
    if len(text) <= STATEMENT_BYTES or len(edges) < 2:
        return [text]
    middle = len(edges) // 2
    return _lineage(edges[:middle]) + _lineage(edges[middle:])
