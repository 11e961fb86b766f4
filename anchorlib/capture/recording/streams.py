"""The streams that observations run through: one for each tensor, kind, mode and phase.

A `NameStreams` has all streams of one name, so that an anchor finds them by one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from anchorlib.capture.tensors import Snapshot, TorchArithmetic, dtype_name, undisturbed
from anchorlib.folds import Fold, OpenWindow
from anchorlib.modes import All, Mode, Summary
from anchorlib.record import Flag, TensorInfo
from anchorlib.recorder.layout import FLAGS_AT, SCALE_AT
from anchorlib.scope import Steps

__all__ = [
    "LOOKED",
    "MIXED",
    "NEW",
    "QUIET",
    "REACHED",
    "UNSCALED",
    "NameStreams",
    "ScaleAndFlags",
    "Seen",
    "Stream",
]

# How a name was used so far (see `NameStreams.use`); from REACHED on it was used with gradients.
NEW, LOOKED, QUIET, REACHED, MIXED = range(5)


@dataclass(frozen=True, slots=True)
class ScaleAndFlags:
    """The loss scale and flags to store with a record.

    scale: the loss scale of a gradient when autograd made it, as a number or a 0-d tensor.
    flags: the flags that are known without reading a tensor.
    skipped: a tensor that is not zero if the optimizer skips this step, which then adds a flag;
        None where there is no such tensor.
    """

    scale: float | torch.Tensor = 1.0
    flags: Flag = Flag.NONE
    skipped: torch.Tensor | None = None

    def read(self) -> tuple[float, Flag]:
        """Return the scale as a number, and all flags.

        The call waits for the device if `scale` or `skipped` is a tensor on one.
        """
        skipped = self.skipped is not None and bool(self.skipped)
        return float(self.scale), self.flags | (Flag.STEP_SKIPPED if skipped else Flag.NONE)

    def split(
        self, device: torch.device
    ) -> tuple[ScaleAndFlags, tuple[tuple[torch.Tensor, int], ...]]:
        """Return this object without its tensors on `device`, and these tensors, each with a place.

        The place is a byte offset in a slot, which is a record's entry in the ring. The device can
        later copy the tensors there, so that nothing has to wait for the device. A tensor in the
        second result is converted to the form that the slot has: a float64 scale, or int16 flags.
        """
        fields = []
        scale, skipped = self.scale, self.skipped
        with undisturbed(), torch.no_grad():
            if isinstance(scale, torch.Tensor) and scale.device == device:
                fields.append((scale.detach().to(torch.float64), SCALE_AT))
                scale = 1.0
            if skipped is not None and skipped.device == device:
                flag = (skipped.detach() != 0).to(torch.int16) * int(Flag.STEP_SKIPPED)
                fields.append((flag + int(self.flags), FLAGS_AT))
                skipped = None
        return (ScaleAndFlags(scale, self.flags, skipped), tuple(fields)) if fields else (self, ())


UNSCALED = ScaleAndFlags()


class Stream:
    """The observations of one tensor and kind, in one mode and phase.

    shape, dtype: those of the stream's last record; None before the first record. records: the
        number of records that `tally` has not added to the totals yet. last_step: the step of the
        last record; 0 before the first.
    """

    __slots__ = (
        *("at_once", "dtype", "fold", "holds", "key", "kind", "last_step", "layout", "mode"),
        *(
            "name",
            "nbytes",
            "scaling",
            "number",
            "order",
            "phase",
            "placements",
            "records",
            "seen",
            "shape",
            "steps",
            "taken",
            "values",
        ),
    )

    def __init__(
        self, name: str, kind: str, mode: Mode, phase: str, arithmetic: TorchArithmetic
    ) -> None:
        self.name = name
        self.kind = kind
        self.phase = phase
        self.number = self.layout = -1  # the queue's numbers of the stream and its last layout
        self.key: bytes | None = None  # key of that layout for the compiled put
        self.mode = str(mode)
        self.values = not isinstance(mode, Summary)
        self.at_once = False  # whether every observation in every step is a record
        self.steps: tuple[Steps, ...] | None = ()  # the steps in which it records; None: all
        self.fold: Fold[torch.Tensor, Snapshot] = Fold(mode, arithmetic)
        self.holds = self.fold.holds
        self.scaling = UNSCALED  # of the last observation folded
        self.order = 0  # of the last observation folded
        self.placements: tuple[tuple[int, int], ...] = ()  # of the last observation, if sharded
        self.seen: Seen | None = None
        self.shape: torch.Size | None = None
        self.dtype: torch.dtype | None = None
        self.records = self.last_step = 0
        self.taken, self.nbytes = 0, 0  # records of all shapes, and the bytes of their values

    def allow(self, steps: Steps | None) -> None:
        """Let the stream record in `steps`, in addition to the steps that were allowed before.

        steps: None allows all steps. Before the first call, no step is allowed.
        """
        if steps is None or self.steps is None:
            self.steps = None
            self.at_once = isinstance(self.fold.mode, All | Summary)
        elif steps not in self.steps:
            self.steps = (*self.steps, steps)

    def idle(self, step: int) -> bool:
        """Return whether the stream selects no observation in `step`, whatever comes.

        The caller then need not observe the tensor.
        """
        return not self._allows(step) or self.fold.idle(step)

    def wants(self, step: int) -> bool:
        """Count one observation in `step`, and return whether the mode selects this observation.

        In a step in which the stream may not record, nothing is counted, and False is returned.
        """
        return self._allows(step) and self.fold.wants(step)

    def close(self, upcoming: int | None) -> OpenWindow[Snapshot] | None:
        """Close the open window if it ends before step `upcoming`, and return it.

        A window is a number of steps that the modes Sum and Final fold into one record. After the
        last step in which the stream may record, the window is closed even if it is not at its end.
        upcoming: the step that begins next; None closes any window.
        Returns None where no window was closed.
        """
        steps = self.steps
        if steps and upcoming is not None and upcoming > max(one.last for one in steps):
            upcoming = None
        return self.fold.close(upcoming)

    def _allows(self, step: int) -> bool:
        return self.steps is None or any(step in one for one in self.steps)

    def tally(self) -> None:
        """Add the records since the last call to the totals of the stream and of its `Seen`."""
        seen, shape, dtype = self.seen, self.shape, self.dtype
        if seen is not None and shape is not None and dtype is not None and self.records:
            nbytes = shape.numel() * dtype.itemsize * self.records if self.values else 0
            seen.nbytes += nbytes
            seen.records += self.records
            self.nbytes += nbytes
            self.taken += self.records
            seen.last_step = max(seen.last_step, self.last_step)
            self.records = 0


class Seen:
    """The totals of the records of one tensor, kind and mode so far, in all phases.

    dtype: the dtype of the first record. common: the records' shape, in which an axis is None if
        its size differs between records; None in place of a shape if the number of axes differs.
        nbytes: the bytes of the records' kept values.
    """

    __slots__ = ("common", "dtype", "first_step", "last_step", "nbytes", "records")

    def __init__(self, dtype: torch.dtype, shape: torch.Size, step: int) -> None:
        self.dtype = dtype_name(dtype)
        self.common: tuple[int | None, ...] | None = tuple(shape)
        self.first_step = self.last_step = step
        self.records = self.nbytes = 0

    def merge(self, shape: torch.Size) -> None:
        """Set those axes of `common` to None in which a new record's `shape` differs."""
        if self.common is None or len(self.common) != len(shape):
            self.common = None
            return
        pairs = zip(self.common, shape, strict=True)
        self.common = tuple(a if a == b else None for a, b in pairs)

    def info(self, key: tuple[str, str, str], rank: int) -> TensorInfo:
        """Return the totals as a TensorInfo, whose number of gaps is 0: gaps are not counted here.

        key: the tensor's name, kind and mode. rank: the rank that this session records.
        """
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


# The streams of values, and of gradients; and for each, its only stream if that takes everything.
Route = tuple[tuple[Stream, ...], tuple[Stream, ...], Stream | None, Stream | None]


def _only(streams: tuple[Stream, ...]) -> Stream | None:
    return streams[0] if len(streams) == 1 and streams[0].at_once else None


class NameStreams:
    """What is recorded of one name: its streams, for each kind and phase.

    make: returns the streams of a given kind and phase, one for each mode. modes: returns the modes
        in which calls are counted.
    use: how the name was used so far: never (NEW), first to look at a model before its training
        began and never with gradients (LOOKED), only without gradients (QUIET), with gradients
        (REACHED), or with and without gradients inside one pass of training (MIXED).
    ends: whether the name is an output of a whole watched model. The gradient of such an output is
        noticed even where it is not recorded, since a gradient ends a pass.
    """

    __slots__ = (
        *("_make", "_modes", "_streams", "counted", "ends", "name", "routes", "sites", "use"),
    )

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
        self.use = NEW
        self.ends = False
        self.routes: dict[str, Route] = {}  # by phase
        self.counted: tuple[tuple[str, str], ...] = ()
        # Sites at which `LineageTracker` has walked, each with the generation of the walk.
        self.sites: dict[tuple[tuple[object, ...], torch.Size], int] = {}

    @property
    def counters(self) -> tuple[tuple[str, str], ...]:
        """The keys under which the clock counts calls of the name: one for each mode.

        Each mode makes a series of records, and each series counts its own calls.
        """
        if not self.counted:
            texts = dict.fromkeys(str(mode) for mode in self._modes())
            self.counted = tuple((self.name, text) for text in texts) or ((self.name, ""),)
        return self.counted

    def streams(self, kind: str, phase: str) -> tuple[Stream, ...]:
        """Return the streams of `kind` in `phase`; empty where nothing is recorded."""
        try:
            return self._streams[kind, phase]
        except KeyError:
            streams = self._streams[kind, phase] = self._make(kind, phase)
            return streams

    def route(self, phase: str) -> Route:
        """Return four items for `phase`: streams of values, of gradients, and the only one of each.

        The first two are tuples. The third item is the stream of values if there is exactly one and
        it records every observation; else None. The fourth item is the stream of gradients, on the
        same condition. The result is kept in `routes`.
        """
        values, grads = self.streams("value", phase), self.streams("grad", phase)
        route = self.routes[phase] = (values, grads, _only(values), _only(grads))
        return route

    def forget(self) -> None:
        """Forget all streams, which are made anew when they are next asked for.

        Called when the choice of tensors or modes has changed.
        """
        self.routes.clear()
        self._streams.clear()
        self.counted = ()
