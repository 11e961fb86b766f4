"""From observations to records: each tensor, kind, mode and phase is a stream with its own fold.

    observation ──▶ Stream (does its mode select it? fold it) ──▶ queue

A fold is the state of a mode: it counts observations, or adds them up until a window of steps ends.
A tensor that no mode selects is neither copied nor queued. A selected tensor is copied once, into
the queue. The thread or process that drains the queue does all else (numpy, digest, summary).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from anchorlib.capture.counting import CallCoordinates
from anchorlib.capture.recording.putter import compiled_putter, layout_key
from anchorlib.capture.recording.step_bytes import StreamBytes
from anchorlib.capture.recording.stream_table import StreamTable
from anchorlib.capture.recording.streams import UNSCALED, ScaleAndFlags, Stream
from anchorlib.capture.tensors import (
    CudaCopier,
    Snapshot,
    dtype_name,
    is_for_many,
    is_plain,
    placements,
    plain,
    plain_inside,
    quick_place,
    skip_reason,
    tensor_parts,
    undisturbed,
    values_writer,
)
from anchorlib.errors import AnchorError, ModeError
from anchorlib.folds import OpenWindow
from anchorlib.modes import All, Mode
from anchorlib.names import escape, join
from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap, TensorInfo
from anchorlib.recorder import Later, RecordQueue, Source
from anchorlib.scope import Steps

__all__ = ["Recorder"]


class Recorder:
    """Applies modes to observations and puts records into the queue.

    Its methods may be called from any thread.
    """

    def __init__(self, queue: RecordQueue) -> None:
        self._queue = queue
        self._lock = queue.lock
        self._records = queue.records
        self._put = queue.records.put
        queue.put_by(compiled_putter)
        self._copier = queue.copy_by(CudaCopier)
        self._table = StreamTable()
        self._open: dict[Stream, None] = {}
        self._problems: list[AnchorError] = []
        self._order = 0
        self.phases = self._table.phases
        self.skipped: Counter[str] = Counter()
        self._header: dict[str, Any] = {}
        self._devices: set[str] = set()

    def streams(
        self, name: str, kind: str, modes: Iterable[tuple[Mode, Steps | None]], phase: str
    ) -> tuple[Stream, ...]:
        """Return the streams of one name, kind and phase: one for each mode.

        A stream keeps the state of one mode, and counts the records that the mode makes.

        modes: the modes, each with the steps in which it records (None: all steps). Streams are
            made at the first call; if a later call asks for a stream again with other steps, the
            stream records in these too.
        """
        with self._lock:
            return self._table.streams(name, kind, modes, phase)

    def observe(
        self,
        streams: tuple[Stream, ...],
        at: CallCoordinates,
        x: torch.Tensor,
        scaling: ScaleAndFlags = UNSCALED,
    ) -> None:
        """Record the present values of `x` in each of `streams` that selects this observation.

        streams: those of the tensor's name, kind and phase, one for each mode. scaling: the loss
            scale and flags to store with the record.
        Raises UnsupportedError for a tensor whose values are not known: see `skip_reason`.
        """
        only = streams[0] if len(streams) == 1 and streams[0].at_once else None
        if only is not None and self.quick(only, at, x, scaling) is not None:
            return
        try:
            with self._lock:
                self._observe(streams, at, x, scaling)
        finally:
            self._queue.fill()

    def _observe(
        self,
        streams: tuple[Stream, ...],
        at: CallCoordinates,
        x: torch.Tensor,
        scaling: ScaleAndFlags,
    ) -> None:
        wanted = [stream for stream in streams if stream.wants(at.step)]
        if not wanted:
            return
        only = wanted[0] if len(wanted) == 1 and not wanted[0].holds else None
        if only is not None and self.quick(only, at, x, scaling) is not None:
            return
        if not is_plain(x):
            self._observe_unusual(wanted, at, x, scaling)
            return
        for stream in wanted:
            self._take(stream, at, x, scaling)

    def quick(
        self,
        stream: Stream,
        at: CallCoordinates,
        x: torch.Tensor,
        scaling: ScaleAndFlags = UNSCALED,
    ) -> torch.Size | None:
        """Record `x` in `stream` in the fast way, if it is an ordinary tensor; return its shape.

        Returns None, and records nothing, for any other tensor (one that is large, on another
        device or of a subclass, for example): the caller then has to use the slow way of `observe`.

        stream: a stream whose mode selects this observation. scaling: the loss scale and flags to
            store with the record.
        """
        queue = self._queue
        if scaling is UNSCALED:
            with self._lock:
                putter, key = queue.putter, stream.key  # the key belongs to stream.layout
                if putter is not None and key is not None and not self._records.placing:
                    order = self._order
                    nbytes = putter.put(x, stream.number, stream.layout, key, at, order)
                    if nbytes is not None and nbytes >= 0:
                        self._order = order + 1
                        stream.records += 1
                        stream.last_step = at[0]
                        self._records.placed(nbytes)
                        return stream.shape
        return self._place_in_python(stream, at, x, scaling)

    def _place_in_python(
        self, stream: Stream, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> torch.Size | None:
        memory = quick_place(x)
        if memory is None:
            return None
        address, dtype, shape, nbytes = memory
        with self._lock:
            self._order = (order := self._order) + 1
            if shape != stream.shape or dtype is not stream.dtype or stream.layout < 0:
                self._reshaped(stream, at[0], dtype, shape)
                self._located("cpu")
            stream.records += 1
            stream.last_step = at[0]
            if scaling is UNSCALED:
                self._put(address, nbytes, stream.number, stream.layout, at, order)
            else:
                scale, flags = scaling.read()
                self._put(
                    address, nbytes, stream.number, stream.layout, at, order, scale, int(flags)
                )
        return shape

    def _observe_unusual(
        self, wanted: list[Stream], at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> None:
        """Record a tensor that is no plain array.

        A sparse or nested tensor is recorded by the plain tensors that it consists of, a sharded
        one by its local shard; a tensor without values is counted as skipped. How a tensor is
        sharded is recorded as `NAME:placements` whenever the placements change.
        wanted: the streams that select this observation.
        """
        lies = placements(x)
        x = plain_inside(x)
        reason = skip_reason(x)
        with undisturbed():
            parts = None if reason else tensor_parts(x)
        for stream in wanted:
            if lies and lies != stream.placements:
                stream.placements = lies
                beside = self._table.stream(
                    f"{stream.name}:placements", stream.kind, All(), at.phase
                )
                self._take(beside, at, torch.tensor(lies, device="cpu"), UNSCALED)
            if reason is not None:
                self._skip(stream, reason, at.step, 1)
            elif parts is None:
                self._take(stream, at, x, scaling)
            else:
                for name, part in parts.items():
                    named = f"{stream.name}:{name}"
                    inner = self._table.stream(named, stream.kind, stream.fold.mode, at.phase)
                    inner.steps = stream.steps
                    self._take(inner, at, part, scaling)

    def _take(
        self, stream: Stream, at: CallCoordinates, x: torch.Tensor, scaling: ScaleAndFlags
    ) -> None:
        order = self._order
        self._order += 1
        if not stream.fold.holds:
            with undisturbed():
                x = plain(x)
            self._emit(stream, at, order, x, 1, scaling)
            return
        ended = stream.fold.hold(at.step, at, x)
        if ended is not None:
            self._emit_held(stream, ended)
        stream.scaling, stream.order = scaling, order
        self._open[stream] = None

    def _emit_held(self, stream: Stream, held: OpenWindow[Snapshot]) -> None:
        if held.refused is None:
            kept = held.kept.tensor
            self._emit(stream, held.at, stream.order, kept, held.count, stream.scaling)
            return
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

    def _emit(  # the fields of a record
        self,
        stream: Stream,
        at: CallCoordinates,
        order: int,
        x: torch.Tensor,
        count: int,
        scaling: ScaleAndFlags,
    ) -> None:
        if x.shape != stream.shape or x.dtype is not stream.dtype or stream.layout < 0:
            self._reshaped(stream, at.step, x.dtype, x.shape)
            self._located(x.device.type)
        stream.records += 1
        stream.last_step = at.step
        source: Source
        if self._copier.takes(x):
            scaling, fields = scaling.split(x.device)
            source = Later(self._copier, x, fields)
            stream.key = None  # the compiled put cannot take tensors of a GPU
        else:
            source = values_writer(x)
        scale, flags = scaling.read()
        self._put(
            source, x.nbytes, stream.number, stream.layout, at, order, scale, int(flags), count
        )

    def _reshaped(self, stream: Stream, step: int, dtype: torch.dtype, shape: torch.Size) -> None:
        """Prepare `stream` for a record whose shape or dtype is not that of the record before.

        The queue is told the new dtype and shape; at the first record it is told the stream, too.
        step: the step in which the new record is made.
        """
        self._table.see(stream, step, dtype, shape)
        if stream.number < 0:
            stream.number = self._queue.stream(
                stream.name, stream.kind, stream.mode, stream.phase, keeps=stream.values
            )
        stream.layout = self._queue.layout(dtype_name(dtype), tuple(shape))
        known = stream.number >= 0 and stream.layout >= 0
        large = is_for_many(shape.numel() * dtype.itemsize)
        stream.key = layout_key(dtype, shape) if known and not large else None

    def _located(self, device: str) -> None:
        """Note in the run's header that recorded tensors lie on `device`.

        Nothing is noted on a machine without an accelerator, where all tensors lie on the CPU.
        """
        if device not in self._devices:
            self._devices.add(device)
            if torch.accelerator.is_available():
                self.header("tensors.device", "|".join(sorted(self._devices)))

    def skip(self, name: str, kind: str, reason: str, step: int) -> None:
        """Count an observation that could not be recorded in any mode, and queue a gap.

        The store keeps the gap: how many observations of a tensor were not recorded, and why.
        reason: why the observation could not be recorded. step: the step in which it was made.
        """
        with self._lock:
            self.skipped[reason] += 1
            self._queue.gap(Gap(name, kind, "", reason, 1, step, step))

    def _skip(self, stream: Stream, reason: str, step: int, count: int) -> None:
        self.skipped[reason] += count
        self._queue.gap(Gap(stream.name, stream.kind, stream.mode, reason, count, step, step))

    def header(self, key: str, value: Any) -> None:
        """Set the entry `key` of the run's header to `value`, unless it has that value already."""
        if self._header.get(key) != value:
            self._header[key] = value
            self._queue.header({key: value})

    def lineage(self, edges: Edges) -> None:
        """Put the edges from a value to its parents (what it was computed from) into the queue."""
        self._queue.edges(edges)

    def operations(self, entries: list[Entry]) -> None:
        """Put entries of the log of traced operations into the queue."""
        self._queue.operations(entries)

    def miss_operations(self, reason: str) -> None:
        """Count one more time at which operations could not be traced, under the text `reason`."""
        with self._lock:
            self.skipped[reason] += 1

    def end_step(self, upcoming: int | None) -> None:
        """Put the records of all windows that end before step `upcoming` into the queue.

        A window is a number of steps that the modes Sum and Final fold into one record.
        upcoming: the step that begins next; None ends all windows.
        """
        with self._lock:
            opened = list(self._open)
        for stream in opened:
            try:
                with self._lock:
                    held = stream.close(upcoming) if stream in self._open else None
                    if held is not None:
                        del self._open[stream]
                        self._emit_held(stream, held)
            finally:
                self._queue.fill()

    def check(self) -> None:
        """Raise the first error that was kept back since the last call; do nothing without one.

        Errors (a ModeError for a Sum window in which shapes differ) are kept back so that training
        goes on. If several were kept back, the others are dropped.
        """
        with self._lock:
            problems, self._problems = self._problems, []
        if problems:
            raise problems[0]

    def tensors(self, rank: int) -> list[TensorInfo]:
        """Return an overview of each tensor recorded so far, in the order of first records.

        rank: the rank that this session records.
        """
        with self._lock:
            return self._table.tensors(rank)

    def weights(self) -> list[StreamBytes]:
        """Return, for each stream, how many records and bytes it has recorded so far."""
        with self._lock:
            return self._table.weights()

    @property
    def emitted(self) -> tuple[int, int]:
        """The number of records so far, and the number of bytes of their kept values."""
        with self._lock:
            return self._table.totals()

    @property
    def last_step(self) -> int:
        """The last step that has a record; -1 where none has."""
        with self._lock:
            return self._table.last_step()
