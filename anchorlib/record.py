"""The one value that travels the line: a record, where and when it was made, and what a run holds.

    torch.Tensor ─capture─▶ Record ─mode─▶ Record ─▶ sink ─▶ store ─▶ Record

A record is what a mode emits. It holds the raw storage of its array (bfloat16 as uint16, fp8 as
uint8: see `anchorlib.dtypes`); `Record.array` is the decoded view that users read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

from anchorlib import dtypes
from anchorlib.errors import ValuesNotKeptError
from anchorlib.names import KINDS, escape, is_kind, join

if TYPE_CHECKING:
    import numpy as np

    from anchorlib.summary import Summary

__all__ = [
    "BUFFER",
    "DETACHED",
    "HEADER_DEPTH",
    "KINDS",
    "UNKNOWN",
    "Coordinates",
    "Edges",
    "Flag",
    "Gap",
    "Parent",
    "Record",
    "TensorInfo",
    "is_kind",
    "summed_gaps",
]


HEADER_DEPTH: Final = 64
"""How deep a run's header may nest lists and mappings; every reader can follow that far."""


class Flag(IntFlag):
    """What else is true of a record; stored as one integer column."""

    NONE = 0
    VALUE_DROPPED = 1  # the line or the disk was full: the summary was kept, the values were not
    STEP_SKIPPED = 2  # the optimizer skipped this step (GradScaler found non-finite gradients)
    SCALED = 4  # a gradient that still carries the loss scale of `Record.scale`


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """Where in a rank's run a record belongs; sorting coordinates is replaying the run."""

    step: int
    pass_index: int = 0
    call: int = 0
    phase: str = "train"
    attempt: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One array, or its summary alone, with where and when it was recorded.

    name, kind, mode: the series it belongs to (`mode` as the mode's canonical text).
    order: a counter over the rank's whole run (inside a session it starts at 0; the writer
        continues the run's).
    time_ns: wall clock, nanoseconds since the epoch.
    count: observations folded into it (1 but for `Sum`).
    dtype: torch's name of the element type, without "torch." ("bfloat16").
    shape: the tensor's shape.
    raw: C-contiguous little-endian storage array of that shape, None where values are not kept.
    summary: the summary row's figures; None until they were computed.
    scale: the loss scale a gradient carries (1.0: none).
    """

    name: str
    kind: str
    mode: str
    coordinates: Coordinates
    order: int
    time_ns: int
    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray[Any, Any] | None
    summary: Summary | None = None
    count: int = 1
    rank: int = 0
    flags: Flag = Flag.NONE
    scale: float = 1.0

    @property
    def step(self) -> int:
        """The step of its coordinates."""
        return self.coordinates.step

    @property
    def pass_index(self) -> int:
        """The pass of its coordinates."""
        return self.coordinates.pass_index

    @property
    def call(self) -> int:
        """The call of its coordinates."""
        return self.coordinates.call

    @property
    def phase(self) -> str:
        """The phase of its coordinates."""
        return self.coordinates.phase

    @property
    def attempt(self) -> int:
        """The attempt of its coordinates."""
        return self.coordinates.attempt

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The values, shape `shape`; bfloat16 and fp8 as float32, everything else as it is.

        Raises ValuesNotKeptError where only the summary was kept.
        """
        if self.raw is None:
            where = escape(join(self.name, self.kind))
            raise ValuesNotKeptError(
                f"the values of {where} at step {self.coordinates.step} were not kept (mode "
                f"{self.mode}); its summary was: see Series.columns"
            )
        return dtypes.decode(self.raw, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of raw storage that travel with the record."""
        return 0 if self.raw is None else self.raw.nbytes


UNKNOWN = "*"
"""The name in a gap of records that were lost before anyone could read whose they were."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Observations of one series that were not recorded, or not with their values."""

    name: str
    kind: str
    mode: str
    reason: str
    count: int
    first_step: int
    last_step: int


def summed_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """One statement of each series and reason, in place of several."""
    found: dict[tuple[str, str, str, str], Gap] = {}
    for gap in gaps:
        key = (gap.name, gap.kind, gap.mode, gap.reason)
        found[key] = _added(found[key], gap) if key in found else gap
    return list(found.values())


def _added(one: Gap, two: Gap) -> Gap:
    return Gap(
        *(one.name, one.kind, one.mode, one.reason),
        count=one.count + two.count,
        first_step=min(one.first_step, two.first_step),
        last_step=max(one.last_step, two.last_step),
    )


@dataclass(frozen=True, slots=True)
class Parent:
    """A tensor that another was computed from.

    call: its call; None for a parameter (or another leaf that lasts), whose last record counts.
    steps_back, pass_index, phase: where it was made, if not in the child's own step, pass (None:
        the same) and phase ("": the same).
    """

    name: str
    call: int | None = 0
    steps_back: int = 0
    pass_index: int | None = None
    phase: str = ""


BUFFER: Final = "it is a buffer"
"""Why nothing is known of what a buffer was computed from, as `Edges.missing` has it."""

DETACHED: Final = "detach"
"""The operation of a tensor that holds what an anchored one held, without its graph."""


@dataclass(frozen=True, slots=True)
class Edges:
    """What the value of `name` was computed from, as autograd saw it at one forward call.

    They hold for every call at the same phase, pass, call and shape from `step` on, until another
    statement for that place; and for places of which nothing is said, if they are the first of
    their (attempt, name, phase, call): see `anchorlib.diagnosis.causes.Lineage`, which reads them.

    parents: the nearest anchored tensors and parameters that autograd follows. Behind them those
        that it does not follow, as far as they are known: what a module was given without a graph,
        or what was detached. No operation has them for an input.
    ops: names of the autograd nodes between, in the order in which backward runs them; the first
        made `name`. With none, the one parent is the same tensor under another name. Without a
        graph "detach", "view", or what a module does, as "LayerNorm.forward".
    inputs: for each op where its inputs come from: k > 0 is `ops[k]`, -k is `parents[k - 1]`, and
        0 something that autograd does not follow.
    missing: why parents may be missing, empty where none are.
    arguments: for each op the scalars that it was told, as "alpha=1, beta=0.5"; empty where none
        of them has any, and in runs that were recorded before this was.
    grad: whether its gradient is recorded wherever one comes.
    """

    name: str
    phase: str
    pass_index: int
    call: int
    shape: tuple[int, ...]
    step: int = 0
    parents: tuple[Parent, ...] = ()
    ops: tuple[str, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    missing: tuple[str, ...] = ()
    grad: bool = True
    attempt: int = 0
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a run holds of one tensor, kind and mode.

    shape: None in a dimension where records differ; None altogether where their ranks differ.
    bytes: of stored values (raw storage).
    """

    name: str
    kind: str
    mode: str
    dtype: str
    shape: tuple[int | None, ...] | None
    ranks: tuple[int, ...]
    records: int
    first_step: int
    last_step: int
    bytes: int
    gaps: int = field(default=0)
