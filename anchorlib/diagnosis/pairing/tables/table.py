"""The records of one run as columns, so that millions are aligned without a loop over records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anchorlib.record import Edges

__all__ = ["State", "Table", "Tensor"]

Array = np.ndarray[Any, Any]
State: TypeAlias = Literal["closed", "died", "open"]


class Tensor(NamedTuple):
    """One series of one rank: a tensor's name and kind, recorded in one mode.

    name: the tensor's name, as it was recorded.
    mode: the mode's text, such as "all" or "sum:window=10".
    """

    name: str
    kind: str
    mode: str
    rank: int


@dataclass(frozen=True, slots=True)
class Table:
    """The records of one run, sorted by (rank, order).

    Where an attempt recorded coordinates again, only the records of the last attempt are rows.
    Each array has one entry for each record; the entries of `tensor`, `phase`, `dtype` and `shape`
    are indices into `tensors`, `phases`, `dtypes` and `shapes`.

    order: the record's place in the order of execution of its rank.
    count: how many observations the record folds (1 except in mode Sum).
    scale: the loss scale by which the record's values are multiplied (float64; 1.0 without one).
    digest: (n, 2) uint64, the high and the low half of xxh3-128 over the raw bytes.
    kept: whether the record's values are stored.
    figures: zero nan inf subnormal numel (int64) and min max sum l2 (float64), by name. Of a record
        without elements min and max are nan, sum and l2 are 0.0.
    edges: rank -> its edges, which state from what each tensor was computed, and how.
    header: rank -> the header of its last attempt: settings, and descriptions of modules, by name.
    gaps: how many observations were not recorded, or were recorded without their values, by
        (name, kind).
    read: yields the raw storage of one record with stored values, in C order. Takes the row, and
        the most bytes that a block may have.
    stack: returns the raw storage of several small records with stored values, of one dtype and
        size: (len(rows), elements). None where records can only be read one by one.
    gaps_from: the first step of any gap; None without gaps, or where that step is not known.
    flags: the flags (`anchorlib.record.Flag`) of each record; None where none are known.
    summed: for each record that the comparison made by adding up several records, the norm of
        these terms; 0 for any other record; None where the comparison added up no records.
    state: the run's: "closed"; "died" where a process that died left the run open; "open" where
        a process still writes it, or where that is not known.
    standing: ranks that were not read -> the rank whose figures and digests they have here.
    """

    run: str
    tensors: Sequence[Tensor]
    phases: Sequence[str]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    tensor: Array
    step: Array
    pass_index: Array
    call: Array
    phase: Array
    attempt: Array
    order: Array
    count: Array
    scale: Array
    dtype: Array
    shape: Array
    digest: Array
    kept: Array
    figures: Mapping[str, Array]
    edges: Mapping[int, Sequence[Edges]]
    header: Mapping[int, Mapping[str, Any]]
    gaps: Mapping[tuple[str, str], int]
    read: Callable[[int, int], Iterator[Array]]
    stack: Callable[[Array], Array] | None = None
    gaps_from: int | None = None
    flags: Array | None = None
    summed: Array | None = None
    state: State = "closed"
    standing: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tensor)

    def of_kind(self, *kinds: str) -> Array:
        """Return a boolean mask: whether each record is of one of these kinds, such as "grad"."""
        return self.where(lambda tensor: tensor.kind in kinds)

    def of_tensor(self, name: str, kind: str, rank: int | None = None) -> Array:
        """Return a boolean mask: whether each record is of the tensor of this name and kind.

        rank: the rank whose records count; None for the records of all ranks.
        """
        return self.where(lambda tensor: tensor[:2] == (name, kind) and rank in (None, tensor.rank))

    def where(self, holds: Callable[[Tensor], bool]) -> Array:
        """Return a boolean mask: whether `holds` is true of the tensor of each record.

        `holds` is called once for each of `tensors`.
        """
        of_tensors = np.array([holds(tensor) for tensor in self.tensors], bool)
        mask: Array = of_tensors[self.tensor] if len(of_tensors) else np.empty(0, bool)
        return mask

    @property
    def rank(self) -> Array:
        """The rank of each record (int64)."""
        of_tensors = np.array([tensor.rank for tensor in self.tensors], np.int64)
        ranks: Array = of_tensors[self.tensor] if len(of_tensors) else np.empty(0, np.int64)
        return ranks
