"""A run whose passes or ranks are merged, as a table like any other.

The rows of several passes or ranks become one row, whose values are computed anew at each reading.
The edges and the header are those of the lowest rank, and of the first pass, of those merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.splits.groups import RowGroup
from anchorlib.diagnosis.pairing.splits.joined_values import (
    halves_of,
    intact,
    joined,
    norm_of_parts,
    together,
)
from anchorlib.diagnosis.pairing.splits.splits import Split
from anchorlib.diagnosis.pairing.tables import Table, Tensor
from anchorlib.record import Edges
from anchorlib.summary import ArraySummary, summarise

__all__ = ["JointTable"]

Array = np.ndarray[Any, Any]
FIGURES = ("zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2")
COLUMNS = (
    *("step", "call", "phase", "attempt", "order", "count", "scale", "dtype", "shape", "digest"),
    "kept",
)
READ = 1 << 24  # bytes of a block of a record


class JointTable:
    """Makes the merged table of the finer run, the run with more passes or ranks.

    layout: how the batch was dealt out to the parts, "block" or "strided".
    damaged: the first row of each group that `made` left out, as values of a part are damaged.
    """

    def __init__(
        self, fine: Table, coarse: Table, split: Split, groups: Sequence[RowGroup], layout: str
    ) -> None:
        self.fine, self.coarse, self.split, self.layout = fine, coarse, split, layout
        self.damaged: list[int] = []
        first = np.array([group.rows[0] for group in groups], np.int64)
        ranks = np.array([self._rank(row) for row in first.tolist()], np.int64)
        order = np.lexsort((fine.order[first], ranks))
        self.groups = [groups[number] for number in order.tolist()]
        self.first = first[order]

    def _rank(self, row: int) -> int:
        return self.split.ranks[self.fine.tensors[self.fine.tensor[row]].rank]

    def made(self) -> Table:
        """Return the merged table, sorted by (rank, order).

        Digests and figures are those of the joined values. Groups with damaged values are left out
        and listed in `damaged`.
        """
        fine = self.fine
        summaries = self._summaries()
        if self.damaged:
            self._keep(~np.isin(self.first, self.damaged))
        first = self.first
        columns = {name: getattr(fine, name)[first] for name in COLUMNS}
        figures = {name: column[first] for name, column in fine.figures.items()}
        shapes = {shape: number for number, shape in enumerate(fine.shapes)}
        summed = np.zeros(len(first))
        for number, group in enumerate(self.groups):
            if group.combined == "first":
                continue
            shape = self.coarse.shapes[int(self.coarse.shape[group.partner])]
            columns["shape"][number] = shapes.setdefault(shape, len(shapes))
            columns["digest"][number] = halves_of(summaries[group.rows[0]].digest)
            for name in FIGURES:
                figures[name][number] = getattr(summaries[group.rows[0]], name)
            figures["numel"][number] = int(np.prod(shape, dtype=np.int64))
            summed[number] = norm_of_parts(fine, group)
        columns["pass_index"] = np.array([self._pass(row) for row in first.tolist()], np.int64)
        columns["tensor"], tensors = self._tensors()
        return replace(
            fine,
            tensors=tensors,
            shapes=list(shapes),
            figures=figures,
            edges=_edges(fine, self.split),
            header=_first_of(fine.header, self.split),
            read=self._reader(),
            stack=self._stacker(),
            flags=None if fine.flags is None else fine.flags[first],
            summed=summed,
            **columns,
        )

    def _summaries(self) -> dict[int, ArraySummary]:
        """Return the summary of each concatenated or summed record, by the first of its rows.

        Records with damaged parts are added to `damaged` instead.
        """
        summaries = {}
        joint = (group for group in self.groups if group.combined != "first")
        for group, held in together(self.fine, joint):
            row = group.rows[0]
            raw = intact(self.fine, group, self.layout, held)
            if raw is None:
                self.damaged.append(row)
            else:
                summaries[row] = summarise(raw, self.fine.dtypes[self.fine.dtype[row]])
        return summaries

    def _keep(self, whole: Array) -> None:
        """Keep only the groups for which the boolean mask `whole` is true."""
        self.first = self.first[whole]
        self.groups = [self.groups[number] for number in np.flatnonzero(whole).tolist()]

    def _tensors(self) -> tuple[Array, list[Tensor]]:
        """Return the tensor code of each row of the merged table, and its tensors.

        A code is an index into these tensors. A tensor of several ranks that are merged is one
        tensor.
        """
        known: dict[Tensor, int] = {}
        codes = []
        for row in self.first.tolist():
            tensor = self.fine.tensors[self.fine.tensor[row]]
            joint = tensor._replace(rank=self.split.ranks[tensor.rank])
            codes.append(known.setdefault(joint, len(known)))
        return np.array(codes, np.int64), list(known)

    def _pass(self, row: int) -> int:
        fine = self.fine
        return self.split.pass_of(fine.phases[fine.phase[row]], int(fine.pass_index[row]))

    def _raw(self, number: int) -> Array:
        return joined(self.fine, self.groups[number], self.layout)

    def _reader(self) -> Callable[[int, int], Iterator[Array]]:
        def read(row: int, nbytes: int) -> Iterator[Array]:
            group = self.groups[row]
            if group.combined == "first":
                yield from self.fine.read(group.rows[0], nbytes)
                return
            raw = self._raw(row)
            count = max(nbytes // raw.itemsize, 1)
            for start in range(0, len(raw), count):
                yield raw[start : start + count]

        return read

    def _stacker(self) -> Callable[[Array], Array] | None:
        inner = self.fine.stack
        if inner is None:
            return None

        def stack(rows: Array) -> Array:
            groups = [self.groups[row] for row in rows.tolist()]
            if all(group.combined == "first" for group in groups):
                return inner(np.array([group.rows[0] for group in groups], np.int64))
            return np.stack([np.concatenate(list(self._whole(row))) for row in rows.tolist()])

        return stack

    def _whole(self, row: int) -> Iterator[Array]:
        group = self.groups[row]
        if group.combined == "first":
            return self.fine.read(group.rows[0], READ)
        return iter([self._raw(row)])


def _first_of(by_rank: Mapping[int, Any], split: Split) -> dict[int, Any]:
    """Return merged rank -> the entry of the lowest of the ranks merged into it that has an entry.

    by_rank: rank of the finer run -> entry.
    """
    firsts: dict[int, Any] = {}
    for rank in sorted(by_rank):
        firsts.setdefault(split.ranks.get(rank, rank), by_rank[rank])
    return firsts


def _edges(fine: Table, split: Split) -> dict[int, list[Edges]]:
    """Return merged rank -> its edges: those of the lowest rank and of the first pass in it."""
    lowest = _first_of(fine.edges, split)
    return {
        rank: [_renumbered(statement, split) for statement in edges if _is_first(statement, split)]
        for rank, edges in lowest.items()
    }


def _is_first(edges: Edges, split: Split) -> bool:
    return edges.phase not in split.phases or edges.pass_index % split.passes == 0


def _renumbered(edges: Edges, split: Split) -> Edges:
    """Return edges of the finer run, with their pass numbers as the merged table counts passes."""
    phase = edges.phase
    parents = tuple(
        parent
        if parent.pass_index is None
        else replace(parent, pass_index=split.pass_of(parent.phase or phase, parent.pass_index))
        for parent in edges.parents
    )
    return replace(edges, pass_index=split.pass_of(phase, edges.pass_index), parents=parents)
