"""The records of one run as columns: what alignment and the join work on, a million at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from anchorlib.record import Edges

__all__ = ["State", "Table", "Tensor"]

Array = np.ndarray[Any, Any]
State: TypeAlias = Literal["closed", "died", "open"]


class Tensor(NamedTuple):
    """One series of one rank: a name and kind that was recorded in one mode.

    name: as recorded.
    mode: the mode's text, as "all" or "sum:window=10".
    """

    name: str
    kind: str
    mode: str
    rank: int


@dataclass(frozen=True, slots=True)
class Table:
    """The records of one run, last attempt of each coordinate, sorted by (rank, order).

    Every array has one entry a record.

    tensors: what `tensor` counts in; phases, dtypes, shapes likewise.
    count: how many observations the record folds (1 but for Sum).
    scale: the loss scale that its values carry (float64; 1.0: none).
    digest: (n, 2) uint64, the two halves of xxh3-128 over the raw bytes.
    kept: whether values are stored.
    figures: zero nan inf subnormal numel (int64) and min max sum l2 (float64), by name.
    edges: what is known of how values were computed, by rank.
    header: what the last attempt of each rank kept about itself, by rank.
    gaps: how many records were not recorded or lost their values, by (name, kind).
    state: "closed"; "died" where the process that wrote it has; "open" where it writes still, or
        nothing is known of it.
    summed: how large that is which comparing made each record of, as a sum; 0 where it did not.
    flags: what else is true of each record (`anchorlib.record.Flag`); None where nothing is known.
    gaps_from: the first step of any gap; None without gaps, or where it is not known.
    read: the raw storage of one record whose values are kept, in C order, in blocks of at most
        that many bytes; never the whole of a large record at once.
    stack: the raw storage of several small records of one dtype and size whose values are kept,
        (len(rows), elements); None where only `read` is there.
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

    def __len__(self) -> int:
        return len(self.tensor)
