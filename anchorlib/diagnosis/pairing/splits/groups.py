"""Groups of records of the finer run, each of which makes up one record of the other run.

Tensors that follow the batch are concatenated along the axis on which the parts are smaller. Sums
over the batch (a parameter's gradient of a pass) are added up. Of a tensor of which every part
holds a replica, one replica is taken. A loss becomes the sum of its parts, their mean, or, where
parts have different numbers of samples, their mean weighted by these: whichever is nearest to the
other run's loss. Groups of any other kind are left out of the merged table. A group
that has no record in the other run is represented by its first row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from anchorlib.diagnosis.pairing.identity import mode_class, repeats
from anchorlib.diagnosis.pairing.splits.splits import Split
from anchorlib.diagnosis.pairing.tables import Table, Tensor
from anchorlib.record import BUFFER

__all__ = ["Key", "RowGroup", "RowGroups", "buffers_of", "grouped", "members", "parameters_of"]

Array = np.ndarray[Any, Any]
PLACEMENTS, PARTIAL = ":placements", 2
"""The suffix of the record of a DTensor's placements, and the number there, in the first column,
for a dimension of the mesh along which each rank holds a summand."""
Combining = Literal["first", "concatenated", "summed", "left out"]
Key = tuple[Hashable, ...]


class RowGroup(NamedTuple):
    """Rows of the finer run (with more passes or ranks) that make up one record of the other run.

    partner: the other run's row of that record, -1 where it has none.
    rows: rows of the finer run's table.
    combined: how rows become one record; with "first", only the first row is taken.
    axis: the axis along which parts are concatenated; without meaning for other groups.
    gradient: whether the rows are gradients that carry the scale of their own part's loss.
    factor: the factor by which the sum or concatenation is multiplied.
    weights: of each row, what it is multiplied by before it is added; () for 1.
    """

    rows: tuple[int, ...]
    partner: int
    combined: Combining
    axis: int = 0
    gradient: bool = False
    factor: float = 1.0
    weights: tuple[float, ...] = ()


@dataclass(slots=True)
class RowGroups:
    """All groups of rows of the finer run (with more passes or ranks).

    listed: the groups, in the order of their first rows.
    replicas: pairs of rows of two ranks that should hold equal values and do not.
    parts: how many groups have shapes that add up to the other run's shape along one axis.
    others: how many groups of a pass lack parts or have shapes that do not fit; they are left out.
    """

    listed: list[RowGroup] = field(default_factory=list)
    replicas: list[tuple[int, int]] = field(default_factory=list)

    parts: int = 0
    others: int = 0

    @property
    def split(self) -> bool:
        """Whether the groups show that the finer run splits the other's work.

        They do where the shapes of more than half of the groups that were counted add up to the
        other run's shapes.
        """
        return self.parts > self.others


def grouped(
    fine: Table,
    coarse: Table,
    split: Split,
    names: Mapping[str, str],
    offset: int,
    factors: Sequence[float],
) -> RowGroups:
    """Return the finer run's rows in groups, each of which makes up one record of the other run.

    fine: the run with more passes or ranks. coarse: the other run. names: the finer run's names ->
    the other run's.
    offset: what to add to the finer run's steps to get the other run's.
    factors: by one of these the sum of a scalar's parts is multiplied: by that which brings the sum
    nearest to the other run's number.
    """
    partners: dict[Key, int] = {}
    for row, key in enumerate(_keys(coarse)):
        partners.setdefault(key[:-1], row)
    grouping = _Grouping(fine, coarse, split, factors, parameters_of(fine), _partial(fine))
    for key, rows in members(fine, split, names, offset).items():
        grouping.add(rows, partners.get(key[:-1], -1))
    return grouping.groups


def members(
    table: Table, split: Split, names: Mapping[str, str], offset: int
) -> dict[Key, list[int]]:
    """Return the coordinates of each merged record -> the rows of a run that are its parts.

    The rows of a record are in the order of ranks, and of execution within a rank. The coordinates
    are a key as `_keys` gives it, with the other run's rank, name, step and pass.
    split: how this run's ranks and passes are merged. names: this run's names -> the other's.
    offset: what to add to this run's steps to get the other's.
    """
    rows_of_record: dict[Key, list[int]] = {}
    for row, key in enumerate(_keys(table)):
        rank, name, kind, phase, step, pass_index, *rest = key
        own = (
            *(split.ranks[rank], names.get(name, name), kind, phase, step + offset),
            *(split.pass_of(phase, pass_index), *rest),
        )
        rows_of_record.setdefault(own, []).append(row)
    return rows_of_record


def _keys(table: Table) -> Iterator[Any]:
    """Yield the key of each row, in the table's order.

    It is (rank, name, kind, phase, step, pass, call, number among repeated observations, the mode's
    `mode_class`, the mode's text).
    """
    columns = (table.step, table.pass_index, table.call, repeats(table))
    lists = zip(*(column.tolist() for column in columns), strict=True)
    whose = zip(table.tensor.tolist(), table.phase.tolist(), strict=True)
    for (number, phase), (step, pass_index, call, again) in zip(whose, lists, strict=True):
        tensor = table.tensors[number]
        place = (
            tensor.rank,
            tensor.name,
            tensor.kind,
            table.phases[phase],
            step,
            pass_index,
            call,
            again,
        )
        yield (*place, mode_class(tensor.mode), tensor.mode)


def parameters_of(table: Table) -> set[str]:
    """Return the names of a run's parameters, known by kinds of records and by stored edges.

    Leaves of autograd count as parameters. But a leaf that has edges of its own, which state what
    made it, is no parameter: it is, for instance, a model's input that requires a gradient.
    """
    names = {
        tensor.name
        for tensor in table.tensors
        if tensor.kind in ("pass_grad", "updated", "delta") or tensor.kind.startswith("opt.")
    }
    for statements in table.edges.values():
        leaves = {p.name for edges in statements for p in edges.parents if p.call is None}
        names |= leaves - {edges.name for edges in statements}
    return names


def buffers_of(table: Table) -> set[tuple[str, int]]:
    """Return the (name, rank) of the buffers of a run's watched models, as its edges state them."""
    return {
        (edges.name, rank)
        for rank, statements in table.edges.items()
        for edges in statements
        if edges.missing == (BUFFER,)
    }


def _partial(table: Table) -> set[tuple[str, str]]:
    """Return the (name, kind) of DTensors of which each rank holds a summand.

    The last recorded placements of a DTensor decide.
    """
    partial = set()
    for number, tensor in enumerate(table.tensors):
        name, mark, _ = tensor.name.rpartition(PLACEMENTS)
        if not mark:
            continue
        row = int(np.flatnonzero(table.tensor == number)[-1])
        placements = np.concatenate(list(table.read(row, 1 << 16))).reshape(-1, 2)
        if (placements[:, 0] == PARTIAL).any():
            partial.add((name, tensor.kind))
    return partial


@dataclass(slots=True)
class _Grouping:
    """The groups of rows so far, and what `add` needs to know of the two runs.

    parameters: names of the finer run's parameters.
    partial: the names and kinds of the finer run's tensors of which each rank holds a summand.
    shares: (phase, number of parts) -> each part's share of the samples, where these differ.
    """

    fine: Table
    coarse: Table
    split: Split
    factors: Sequence[float]
    parameters: set[str]
    partial: set[tuple[str, str]]
    groups: RowGroups = field(default_factory=RowGroups)
    shares: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def add(self, rows: list[int], partner: int) -> None:
        """Add the group of these rows; rows that record the placements of a DTensor are skipped.

        partner: the other run's row of the record that they make up, -1 where it has none.
        """
        tensor = self.fine.tensors[self.fine.tensor[rows[0]]]
        if tensor.name.endswith(PLACEMENTS):
            return
        group = RowGroup(tuple(rows), partner, "first")
        if len(rows) > 1 and partner >= 0:
            whole = tensor.name in self.parameters and tensor.kind != "pass_grad"
            group = self._whole(group) if whole else self._part(group, tensor)
        self.groups.listed.append(group)

    def _whole(self, group: RowGroup) -> RowGroup:
        """Return the group of a tensor that a step has once, as a parameter: shards or replicas.

        Shards are concatenated. Of replicas, the first is taken. But if replicas of several ranks
        differ, the first that differs from the first replica is taken, since it shows the
        difference, and the rows of these two are added to `groups.replicas`.
        """
        if (axis := self._axis(group)) is not None:
            return self._kept(group._replace(combined="concatenated", axis=axis))
        digests = self.fine.digest[list(group.rows)]
        other = np.flatnonzero((digests != digests[0]).any(axis=1))
        ranks = {self.fine.tensors[self.fine.tensor[row]].rank for row in group.rows}
        if len(other) and len(ranks) == len(group.rows):
            row = group.rows[int(other[0])]
            self.groups.replicas.append((group.rows[0], row))
            # The replica that differs stands for all: the others would hide the difference.
            return group._replace(rows=(row,))
        return group

    def _part(self, group: RowGroup, tensor: Tensor) -> RowGroup:
        """Return the group of a tensor that each pass has: batch parts, summands or replicas.

        A group that lacks parts, or whose shapes do not fit, is left out and counted in
        `groups.others`. A value whose parts all have the other run's shape, but are no replicas, is
        left out without being counted.
        """
        axis = self._axis(group)
        if axis is not None:
            # Shards of a parameter's gradient are reduced already: no part's scale is left in them.
            gradient = tensor.kind != "value" and tensor.name not in self.parameters
            return self._kept(group._replace(combined="concatenated", axis=axis, gradient=gradient))
        if not self._complete(group):
            self.groups.others += 1
            return group._replace(combined="left out")
        if (tensor.name, tensor.kind) in self.partial:
            return self._kept(group._replace(combined="summed"))
        if not self._target(group):
            return self._number(group)
        if self._is_replica(group):
            return group
        if tensor.kind == "value":
            return group._replace(combined="left out")
        return self._kept(group._replace(combined="summed", gradient=True))

    def _complete(self, group: RowGroup) -> bool:
        """Return whether each part has a record with the shape of the other run's record."""
        fine, rows = self.fine, list(group.rows)
        phase = fine.phases[fine.phase[rows[0]]]
        passes = self.split.passes if phase in self.split.phases else 1
        alike = bool((fine.shape[rows] == fine.shape[rows[0]]).all())
        alike &= fine.shapes[fine.shape[rows[0]]] == self._target(group)
        return alike and len(rows) == self.split.together * passes

    def _is_replica(self, group: RowGroup) -> bool:
        """Return whether all parts have equal bits and are copies of the whole, not summands of it.

        They are copies where the norm of one part is at least as near to the norm of the other
        run's record as the norm of the parts' sum is.
        """
        fine, rows = self.fine, list(group.rows)
        if not (fine.digest[rows] == fine.digest[rows[0]]).all():
            return False
        own, goal = fine.figures["l2"][rows[0]], self.coarse.figures["l2"][group.partner]
        return bool(abs(own - goal) <= abs(len(rows) * own - goal))

    def _number(self, group: RowGroup) -> RowGroup:
        """Return the group of a scalar: the sum of parts, times one of `factors`.

        The factor is the one that brings the sum nearest to the other run's number. Of parts with
        different numbers of samples it may be the mean that is weighted by these. Parts that all
        have the bits of the other run's number are replicas: the first one is taken.
        """
        rows = list(group.rows)
        if (self.fine.digest[rows] == self.coarse.digest[group.partner]).all():
            return group
        parts = self.fine.figures["sum"][rows]
        goal = float(self.coarse.figures["sum"][group.partner])
        ways = [group._replace(factor=factor) for factor in self.factors]
        if shares := self.shares.get(self._where(group)):
            ways.append(group._replace(weights=shares))
        nearest = min(ways, key=lambda way: abs(_total(parts, way) - goal))
        return self._kept(nearest._replace(combined="summed"))

    def _where(self, group: RowGroup) -> tuple[str, int]:
        """Return the phase of a group's rows, and how many they are."""
        fine = self.fine
        return fine.phases[fine.phase[group.rows[0]]], len(group.rows)

    def _kept(self, group: RowGroup) -> RowGroup:
        """Return the group, marked as left out where its rows cannot be put together.

        They can be put together where all have stored values, of one dtype and one loss scale.
        """
        rows = list(group.rows)
        kept = self.fine.kept[rows].astype(bool).all()
        kept &= (self.fine.dtype[rows] == self.fine.dtype[rows[0]]).all()
        kept &= (self.fine.scale[rows] == self.fine.scale[rows[0]]).all()
        return group if kept else group._replace(combined="left out")

    def _target(self, group: RowGroup) -> tuple[int, ...]:
        """Return the shape of the other run's record that the group's rows make up."""
        shape: tuple[int, ...] = self.coarse.shapes[self.coarse.shape[group.partner]]
        return shape

    def _axis(self, group: RowGroup) -> int | None:
        """Return the axis along which the parts add up to the other run's shape; None if none does.

        A group that has such an axis is counted in `groups.parts`; where its parts differ in size,
        their shares of the whole are kept for the numbers that come after it.
        """
        target = self._target(group)
        shapes = [self.fine.shapes[code] for code in self.fine.shape[list(group.rows)].tolist()]
        if any(len(shape) != len(target) for shape in shapes):
            return None
        sizes = np.array(shapes, np.int64).reshape(len(shapes), len(target))
        axes = np.flatnonzero((sizes != np.array(target, np.int64)).any(axis=0))
        if len(axes) != 1 or sizes[:, axes[0]].sum() != target[axes[0]]:
            return None
        self.groups.parts += 1
        lengths = sizes[:, axes[0]]
        if (lengths != lengths[0]).any():
            self.shares[self._where(group)] = tuple((lengths / lengths.sum()).tolist())
        return int(axes[0])


def _total(parts: Array, way: RowGroup) -> float:
    """Return the sum of numbers by a group's weights and factor."""
    return float((parts * (way.weights or 1.0)).sum()) * way.factor
