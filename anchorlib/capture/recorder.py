"""From observations to records: each tensor, kind, mode and phase is a stream with its own fold.

    observation ──▶ Stream (does its mode select it? fold it) ──▶ Emitted ──▶ queue

What a mode does not select is neither copied nor queued. Everything that can wait (numpy, digest,
summary) waits for the queue's drain thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from anchorlib.capture.clock import At
from anchorlib.capture.parts import plain_inside, tensor_parts
from anchorlib.capture.snapshot import (
    BufferPool,
    Snapshot,
    TorchArithmetic,
    dtype_name,
    is_plain,
    skip_reason,
    to_raw,
    undisturbed,
)
from anchorlib.errors import AnchorError, ModeError
from anchorlib.modes import Fold, Held, Mode, Summary
from anchorlib.names import escape, join
from anchorlib.record import Coordinates, Edges, Flag, Gap, Record, TensorInfo
from anchorlib.sinks import RecordQueue
from anchorlib.summary import summarise

__all__ = ["NO_NOTE", "Emitted", "Note", "Plan", "Recorder", "Stream"]


@dataclass(frozen=True, slots=True)
class Note:
    """What else is to be stored with a record.

    scale: the loss scale that its gradient carried when autograd made it; a 0-d tensor is read
        on the drain thread, so that nobody waits for an accelerator.
    flags: what is true of it.
    skipped: a tensor that is not zero where the optimizer skips this step.
    """

    scale: float | torch.Tensor = 1.0
    flags: Flag = Flag.NONE
    skipped: torch.Tensor | None = None

    def read(self) -> tuple[float, Flag]:
        """The scale and all flags, as numbers."""
        skipped = self.skipped is not None and bool(self.skipped)
        return float(self.scale), self.flags | (Flag.STEP_SKIPPED if skipped else Flag.NONE)


NO_NOTE = Note()


class Stream:
    """The observations of one tensor and kind, in one mode and phase."""

    __slots__ = ("fold", "kind", "mode", "name", "note", "order", "seen", "values")

    def __init__(self, name: str, kind: str, mode: Mode, arithmetic: TorchArithmetic) -> None:
        self.name = name
        self.kind = kind
        self.mode = str(mode)
        self.values = not isinstance(mode, Summary)
        self.fold: Fold[torch.Tensor, Snapshot] = Fold(mode, arithmetic)
        self.note = NO_NOTE  # of the last observation folded
        self.order = 0  # the same
        self.seen: Seen | None = None


class Seen:
    """What was emitted of one tensor, kind and mode so far; the session's own listing."""

    __slots__ = ("common", "dtype", "first_step", "last_step", "nbytes", "records", "shape")

    def __init__(self, tensor: torch.Tensor, step: int) -> None:
        self.dtype = dtype_name(tensor.dtype)
        self.shape = tensor.shape  # of the last record
        self.common: tuple[int | None, ...] | None = tuple(tensor.shape)
        self.first_step = self.last_step = step
        self.records = self.nbytes = 0

    def merge(self, shape: torch.Size) -> None:
        """A record has another shape than the one before it."""
        self.shape = shape
        if self.common is None or len(self.common) != len(shape):
            self.common = None
            return
        pairs = zip(self.common, shape, strict=True)
        self.common = tuple(a if a == b else None for a, b in pairs)

    def info(self, key: tuple[str, str, str], rank: int) -> TensorInfo:
        """The listing's entry."""
        return TensorInfo(
            *key,
            self.dtype,
            self.common,
            (rank,),
            self.records,
            self.first_step,
            self.last_step,
            self.nbytes,
        )


class Emitted:
    """A record on its way: finished by `record`, on the drain thread."""

    __slots__ = ("_at", "_count", "_note", "_order", "_snapshot", "_stream", "_time", "nbytes")

    def __init__(  # what a record is made of
        self, stream: Stream, at: At, order: int, snapshot: Snapshot, count: int, note: Note
    ) -> None:
        self._stream = stream
        self._at = at
        self._order = order
        self._time = time.time_ns()
        self._snapshot = snapshot
        self._count = count
        self._note = note
        self.nbytes = snapshot.tensor.numel() * snapshot.tensor.element_size()

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self._stream.name

    @property
    def kind(self) -> str:
        """The tensor's kind."""
        return self._stream.kind

    @property
    def mode(self) -> str:
        """The mode's canonical text."""
        return self._stream.mode

    @property
    def step(self) -> int:
        """The step it was observed in."""
        return self._at.step

    def record(self) -> Record:
        """The finished record; its arrays share the snapshot's memory."""
        tensor = self._snapshot.tensor
        if tensor.device.type != "cpu":
            tensor = tensor.cpu()
        raw, dtype = to_raw(tensor), dtype_name(tensor.dtype)
        scale, flags = self._note.read()
        return Record(
            name=self.name,
            kind=self.kind,
            mode=self.mode,
            coordinates=Coordinates(*self._at),
            order=self._order,
            time_ns=self._time,
            dtype=dtype,
            shape=tuple(tensor.shape),
            raw=raw if self._stream.values else None,
            summary=summarise(raw, dtype),
            count=self._count,
            flags=flags,
            scale=scale,
        )

    bare = lost = False

    def summary_alone(self) -> Summarised:
        """The record without its values: nothing is lost where none were to be kept."""
        record = self.record()
        if not self._stream.values:
            return Summarised(record, lost=False)
        flags = record.flags | Flag.VALUE_DROPPED
        return Summarised(replace(record, raw=None, flags=flags), lost=True)

    def release(self) -> None:
        """Its buffer goes back to the pool."""
        self._snapshot.release()


class Summarised:
    """A finished record whose values were not kept."""

    __slots__ = ("_record", "kind", "lost", "mode", "name", "step")

    bare = True
    nbytes = 0  # no values: summaries that wait are counted, not weighed

    def __init__(self, record: Record, *, lost: bool) -> None:
        self._record = record
        self.name, self.kind, self.mode = record.name, record.kind, record.mode
        self.step = record.coordinates.step
        self.lost = lost

    def record(self) -> Record:
        """The record."""
        return self._record

    def summary_alone(self) -> Summarised:
        """Itself: it has nothing more to leave out."""
        return self

    def release(self) -> None:
        """It holds no buffer."""


class Plan:
    """What is recorded of one name: for each kind and phase, its streams.

    make: the streams of a kind and phase. modes: those that uses of the name are counted by.
    """

    __slots__ = ("_counters", "_make", "_modes", "_streams", "name")

    def __init__(
        self,
        name: str,
        make: Callable[[str, str], tuple[Stream, ...]],
        modes: Callable[[], Iterable[Mode]],
    ) -> None:
        self.name = name
        self._make = make
        self._modes = modes
        self._streams: dict[tuple[str, str], tuple[Stream, ...]] = {}
        self._counters: tuple[tuple[str, str], ...] | None = None

    @property
    def counters(self) -> tuple[tuple[str, str], ...]:
        """What the clock counts when the name is used: each series has calls of its own."""
        if self._counters is None:
            texts = dict.fromkeys(str(mode) for mode in self._modes())
            self._counters = tuple((self.name, text) for text in texts) or ((self.name, ""),)
        return self._counters

    def streams(self, kind: str, phase: str) -> tuple[Stream, ...]:
        """The streams of `kind` in `phase`; empty where nothing is recorded."""
        found = self._streams.get((kind, phase))
        if found is None:
            found = self._streams[kind, phase] = self._make(kind, phase)
        return found

    def forget(self) -> None:
        """What is recorded has changed: ask again."""
        self._streams.clear()
        self._counters = None


class Recorder:
    """Applies modes, makes records, hands them to the queue. Safe to call from any thread."""

    def __init__(self, queue: RecordQueue, pool: BufferPool) -> None:
        self._queue = queue
        self._pool = pool
        self._arithmetic = TorchArithmetic(pool)
        self._lock = threading.RLock()
        self._streams: dict[tuple[str, str, str, str], Stream] = {}
        self._open: dict[Stream, None] = {}
        self._problems: list[AnchorError] = []
        self._seen: dict[tuple[str, str, str], Seen] = {}
        self._order = 0
        self.bytes = 0
        self.skipped: Counter[str] = Counter()

    def streams(
        self, name: str, kind: str, modes: Iterable[Mode], phase: str
    ) -> tuple[Stream, ...]:
        """The streams of one name, kind and phase, one a mode; the same ones at every call."""
        with self._lock:
            return tuple(self._stream(name, kind, mode, phase) for mode in modes)

    def _stream(self, name: str, kind: str, mode: Mode, phase: str) -> Stream:
        key = (name, kind, str(mode), phase)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(name, kind, mode, self._arithmetic)
        return stream

    def observe(
        self, streams: tuple[Stream, ...], at: At, x: torch.Tensor, note: Note = NO_NOTE
    ) -> None:
        """Record `x` as it is now, in each stream that selects it."""
        with self._lock:
            wanted = [stream for stream in streams if stream.fold.wants(at.step)]
            if not wanted:
                return
            if not is_plain(x):
                self._observe_unusual(wanted, at, x, note)
                return
            for stream in wanted:
                self._take(stream, at, x, note)

    def _observe_unusual(self, wanted: list[Stream], at: At, x: torch.Tensor, note: Note) -> None:
        """Observe what is no plain array: its parts, its local shard, or nothing at all."""
        x = plain_inside(x)
        reason = skip_reason(x)
        with undisturbed():
            parts = None if reason else tensor_parts(x)
        for stream in wanted:
            if reason is not None:
                self._skip(stream, reason, at.step, 1)
            elif parts is None:
                self._take(stream, at, x, note)
            else:
                for name, part in parts.items():
                    named = f"{stream.name}:{name}"
                    inner = self._stream(named, stream.kind, stream.fold.mode, at.phase)
                    self._take(inner, at, part, note)

    def _take(self, stream: Stream, at: At, x: torch.Tensor, note: Note) -> None:
        order = self._order
        self._order += 1
        if not stream.fold.holds:
            self._emit(stream, at, order, Snapshot(x, self._pool), 1, note)
            return
        ended = stream.fold.hold(at.step, at, x)
        if ended is not None:
            self._emit_held(stream, ended)
        stream.note, stream.order = note, order
        self._open[stream] = None

    def _emit_held(self, stream: Stream, held: Held[Snapshot]) -> None:
        if held.refused is None:
            self._emit(stream, held.at, stream.order, held.kept, held.count, stream.note)
            return
        held.kept.release()
        self._skip(stream, "shapes differ in a Sum window", held.at.step, held.count)
        first, other = held.refused
        where = escape(join(stream.name, stream.kind))
        self._problems.append(
            ModeError(
                f"{where}: shapes {list(first)} and {list(other)} cannot be summed in one window "
                f"(step {held.at.step}); that window was not recorded: use All, or a window in "
                "which the shape stays the same"
            )
        )

    def _emit(  # what a record is made of
        self, stream: Stream, at: At, order: int, snapshot: Snapshot, count: int, note: Note
    ) -> None:
        emitted = Emitted(stream, at, order, snapshot, count, note)
        self.bytes += emitted.nbytes
        self._see(stream, at, snapshot.tensor, emitted.nbytes)
        self._queue.put(emitted)

    def _see(self, stream: Stream, at: At, tensor: torch.Tensor, nbytes: int) -> None:
        seen = stream.seen
        if seen is None:
            key = (stream.name, stream.kind, stream.mode)
            seen = stream.seen = self._seen.setdefault(key, Seen(tensor, at.step))
        seen.records += 1
        seen.last_step = at.step
        if stream.values:
            seen.nbytes += nbytes
        if tensor.shape != seen.shape:
            seen.merge(tensor.shape)

    def skip(self, name: str, kind: str, reason: str, step: int, count: int = 1) -> None:
        """Count an observation of no particular mode that could not be recorded."""
        with self._lock:
            self.skipped[reason] += count
            self._queue.gap(Gap(name, kind, "", reason, count, step, step))

    def _skip(self, stream: Stream, reason: str, step: int, count: int) -> None:
        self.skipped[reason] += count
        self._queue.gap(Gap(stream.name, stream.kind, stream.mode, reason, count, step, step))

    def lineage(self, edges: Edges) -> None:
        """Pass on what a value was computed from."""
        self._queue.edges(edges)

    def end_step(self, upcoming: int | None) -> None:
        """Emit the windows that do not reach into step `upcoming` (None: all of them)."""
        with self._lock:
            for stream in list(self._open):
                held = stream.fold.close(upcoming)
                if held is not None:
                    del self._open[stream]
                    self._emit_held(stream, held)
        self._queue.wake()

    def check(self) -> None:
        """Raise what could not be raised where it happened, once."""
        with self._lock:
            problems, self._problems = self._problems, []
        if problems:
            raise problems[0]

    def tensors(self, rank: int) -> list[TensorInfo]:
        """What was emitted so far, in the order of first records."""
        with self._lock:
            return [seen.info(key, rank) for key, seen in self._seen.items()]
