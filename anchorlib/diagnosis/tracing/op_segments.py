"""The traced operations between a record and the records that it was computed from, in both runs.

The digest of a record shows which operation made it (`anchorlib.operations.RecordMakers`), and each
operation states which operations made its inputs. So the operations between two records follow, and
no name is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.operations import Op, RecordMakers, computes, segment

__all__ = ["OpSegments"]

Array = np.ndarray[Any, Any]
Steps: TypeAlias = Mapping[tuple[int, int], Sequence[Op]]
"""The operations of each rank and step, in their order."""

FAMILIES = ({"forward", "recompute"}, {"backward", "accumulate"}, {"optimizer"})
"""Stages that belong together: the operations of a record are looked for in its own family only, as
those between two gradients among backward's."""


class OpSegments:
    """The traced operations that lead to each record of one run.

    rows: the rows of records that the other run has too, ascending.
    """

    def __init__(self, table: Table, rows: Array, steps: Steps) -> None:
        self._table, self._rows, self._steps = table, rows, steps
        self._joined: dict[int, RecordMakers] = {}
        self._makers: dict[tuple[int, int], dict[int, Op]] = {}

    @classmethod
    def of(cls, alignment: Alignment, steps: tuple[Steps, Steps]) -> tuple[OpSegments, OpSegments]:
        """Return the `OpSegments` of A and of B for the records that both runs have.

        steps: the operations of A, and of B, by rank and step.
        """
        rows = np.unique(alignment.a_row), np.unique(alignment.b_row)
        return cls(alignment.a, rows[0], steps[0]), cls(alignment.b, rows[1], steps[1])

    def before(self, row: int) -> tuple[Op, ...] | None:
        """Return the operations that computed a record from records that both runs have.

        They are in the order in which they ran. None where the record's step was not traced, or no
        operation is known that made the record.
        row: a row of this run's table.
        """
        rank, step = self._table.tensors[self._table.tensor[row]].rank, int(self._table.step[row])
        ops = self._steps.get((rank, step))
        if not ops:
            return None
        makers = self._made(rank, step)
        end = makers.get(row)
        if end is None or end.step != step:
            return None
        stops = [op for other, op in makers.items() if other != row and op.step == step]
        family = next((stages for stages in FAMILIES if end.stage in stages), {end.stage})
        between = segment(ops, end, stops)
        return tuple(op for op in between if op.stage in family and computes(op))

    def _made(self, rank: int, step: int) -> dict[int, Op]:
        """Return, for each row of one rank and step, the operation that made its record."""
        known = self._makers.get((rank, step))
        if known is None:
            known = self._makers[rank, step] = dict(self._makers_of(rank, step))
        return known

    def _makers_of(self, rank: int, step: int) -> list[tuple[int, Op]]:
        table, joined = self._table, self._of_rank(rank)
        there = self._rows[table.step[self._rows] == step]
        made = []
        for row, digest in zip(there.tolist(), _digests(table, there), strict=True):
            tensor = table.tensors[table.tensor[row]]
            if tensor.rank != rank:
                continue
            shape = tuple(table.shapes[table.shape[row]])
            at = {"step": step, "pass_index": int(table.pass_index[row])}
            maker = joined.maker(tensor.name, tensor.kind, digest, shape, **at)
            if maker is not None:
                made.append((row, maker))
        return made

    def _of_rank(self, rank: int) -> RecordMakers:
        known = self._joined.get(rank)
        if known is None:
            own = (op for (at, _), ops in self._steps.items() if at == rank for op in ops)
            known = self._joined[rank] = RecordMakers(own)
        return known


def _digests(table: Table, rows: Array) -> list[str]:
    text = table.digest[rows].astype(">u8").tobytes().hex()
    return [text[start : start + 32] for start in range(0, len(text), 32)]
