"""Records: what was recorded of a tensor, where and when.

Beside records stand gaps (what was not recorded), edges (from which tensors a value was computed)
and the overview of a run's tensors.

    torch.Tensor ─capture─▶ observation ─mode─▶ Record ─▶ sink ─▶ store ─▶ Record

A mode (All, Sum, …) makes records of a tensor's observations. A record holds the raw storage of its
array (bfloat16 as uint16, fp8 as uint8: see `anchorlib.dtypes`); `Record.array` is the decoded view
that users read.
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

    from anchorlib.summary import ArraySummary

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
"""How deep a run's header may nest lists and mappings, so that every reader can parse it."""


class Flag(IntFlag):
    """Facts about a record, each a bit; the bits of a record share one integer column."""

    NONE = 0
    VALUE_DROPPED = 1  # the queue or the disk was full: the summary was kept, the values were not
    STEP_SKIPPED = 2  # the optimizer skipped this step (GradScaler found non-finite gradients)
    SCALED = 4  # a gradient that still carries the loss scale of `Record.scale`


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """Where in a rank's run a record was made; sorting coordinates gives the order of the run.

    step: the number of the optimizer step.
    pass_index: the number of the forward and backward inside the step, from 0 on.
    call: how often the tensor's name occurred before in that pass.
    phase: "train", "eval", "no_grad", or a name of the user's.
    attempt: how often the rank was started before.
    """

    step: int
    pass_index: int = 0
    call: int = 0
    phase: str = "train"
    attempt: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One array, or its summary alone, with where and when it was recorded.

    name, kind, mode: the record's series (`mode` is the mode's canonical text).
    order: a counter over the rank's whole run (a session counts from 0; the writer continues the
        run's count).
    time_ns: wall clock, nanoseconds since the epoch.
    count: how many observations were folded into the record (1 except for `Sum`).
    dtype: torch's name of the element type, without "torch." ("bfloat16").
    shape: the tensor's shape.
    raw: C-contiguous little-endian storage array of that shape, None where values are not kept.
    summary: the digest and the statistics of the values; None until they were computed.
    rank: the process of the distributed job that made the record.
    flags: facts about the record, such as values that were dropped.
    scale: the loss scale by which a gradient is still multiplied (1.0: none).
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
    summary: ArraySummary | None = None
    count: int = 1
    rank: int = 0
    flags: Flag = Flag.NONE
    scale: float = 1.0

    @property
    def step(self) -> int:
        """The number of the optimizer step in which the record was made."""
        return self.coordinates.step

    @property
    def pass_index(self) -> int:
        """The number of the forward and backward pass inside the step, from 0 on."""
        return self.coordinates.pass_index

    @property
    def call(self) -> int:
        """How often the tensor's name was used before in the same pass: 0 at its first use."""
        return self.coordinates.call

    @property
    def phase(self) -> str:
        """The phase in which the record was made: "train", "eval", "no_grad", or another name."""
        return self.coordinates.phase

    @property
    def attempt(self) -> int:
        """How often the rank was started before the start that made the record: 0 for the first."""
        return self.coordinates.attempt

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The values, of shape `shape`; bfloat16 and fp8 as float32, complex32 as complex64.

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
        """Bytes of the record's raw storage; 0 for a record without values."""
        return 0 if self.raw is None else self.raw.nbytes


UNKNOWN = "*"
"""The `Gap.name` of records that were lost without its being known of which tensors they were."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Observations of one tensor, kind and mode that were not recorded, or recorded without values.

    reason: why, as text.
    count: how many observations.
    first_step, last_step: the first and the last step in which such an observation was made.
    """

    name: str
    kind: str
    mode: str
    reason: str
    count: int
    first_step: int
    last_step: int


def summed_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    """Return `gaps` with those of equal name, kind, mode and reason added up into one gap."""
    sums: dict[tuple[str, str, str, str], Gap] = {}
    for gap in gaps:
        key = (gap.name, gap.kind, gap.mode, gap.reason)
        sums[key] = _added(sums[key], gap) if key in sums else gap
    return list(sums.values())


def _added(one: Gap, two: Gap) -> Gap:
    return Gap(
        *(one.name, one.kind, one.mode, one.reason),
        count=one.count + two.count,
        first_step=min(one.first_step, two.first_step),
        last_step=max(one.last_step, two.last_step),
    )


@dataclass(frozen=True, slots=True)
class Parent:
    """A tensor that another tensor, the child, was computed from.

    name: the parent's name.
    call: the call of the parent's record; None for a parameter (or another leaf that lasts), where
        the parent's last record before the child's is meant.
    steps_back: how many steps before the child the parent was made.
    pass_index, phase: the pass and phase of the parent's record; None and "" if they are the same
        as the child's.
    """

    name: str
    call: int | None = 0
    steps_back: int = 0
    pass_index: int | None = None
    phase: str = ""


BUFFER: Final = "it is a buffer"
"""The reason in `Edges.missing` of a buffer: it is not known from what it was computed."""

DETACHED: Final = "detach"
"""The name in `Edges.ops` of an operation that takes an anchored tensor's values, not its graph."""


@dataclass(frozen=True, slots=True)
class Edges:
    """From which tensors the value of `name` was computed, and by which operations, in one call.

    Those tensors are the value's parents. The edges hold for every record of `name` at this phase,
    pass, call and shape from `step` on, until other edges are stated for the same phase, pass, call
    and shape. The first edges of an (attempt, name, phase, call) also hold for passes and shapes
    without edges of their own: see `anchorlib.diagnosis.causes.Lineage`.

    shape: the value's shape, without sizes that are not plain numbers, as the ragged size of a
        nested tensor.

    parents: the nearest anchored tensors and parameters that autograd follows; after them those
        that it does not follow, as far as they are known: arguments without a graph that a module
        was given, and detached tensors. The detached tensors are inputs of no operation.

    ops: names of the autograd nodes between the parents and the value, in the order in which
        backward runs them; the first node made the value. Without ops, the one parent is the same
        tensor under another name. Where autograd has no graph of the computation, the only op is
        "detach", "view", or the forward of a module, such as "LayerNorm.forward".

    inputs: for each op, the sources of its inputs: k > 0 is `ops[k]`, -k is `parents[k - 1]`, and 0
        is a value that autograd does not follow.

    missing: reasons why parents may be missing from `parents`; () if none are.

    arguments: for each op its scalar arguments, such as "alpha=1, beta=0.5"; () where no op has
        any, and in runs of versions that did not record arguments.

    grad: whether the gradient of `name` is recorded in every backward that reaches it.
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
    """An overview of the records of one tensor, kind and mode in a run.

    shape: a dimension in which records differ is None; the whole shape is None where records differ
        in their number of dimensions.
    ranks: the ranks (processes of the distributed job) that recorded the tensor.
    records: how many records there are, all ranks together.
    first_step, last_step: the first and the last step that has a record.
    bytes: how many bytes the records' values take in the store.
    gaps: how many observations were not recorded, or were recorded without values.
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
