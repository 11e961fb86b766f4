"""Passes or ranks of one run merged, where the other run does their work at once.

The loss of a part may be the mean over the part, or the part's share of the whole batch's mean. So
gradients of the parts are scaled by the factor that brings them nearest to the other run's
gradients. Gradients that the training had accumulated over passes or reduced over ranks are not
scaled: they show whether the training itself applied the factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.splits.groups import RowGroup, RowGroups, grouped
from anchorlib.diagnosis.pairing.splits.joined_values import (
    LAYOUTS,
    halves_of,
    intact,
    summable,
)
from anchorlib.diagnosis.pairing.splits.joint_table import JointTable
from anchorlib.diagnosis.pairing.splits.splits import Split
from anchorlib.diagnosis.pairing.tables import Table
from anchorlib.names import escape, join
from anchorlib.summary import digest

__all__ = ["Merged", "merged"]

SAMPLE = 64  # gradients by whose size the factor is chosen
LOOKED_AT = 8  # records by which the order of samples is chosen
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Merged:
    """Which passes and ranks of a run were merged for the comparison.

    side: the run, "a" or "b". passes, ranks: how many were merged into one.
    all: whether all passes and ranks of the run were merged, so that it has one of each afterwards.
    lines: notes on the merging.
    damaged: a line for each record that was left out since the values of a part are damaged.
    redealt: whether passes were merged in both runs, as B deals the samples of a step to its passes
        otherwise than A.
    """

    side: str
    passes: int
    ranks: int
    all: bool = True
    lines: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    redealt: bool = False

    @property
    def clause(self) -> str:
        """The merging as a clause for people, such as "B's 2 ranks are compared as one"."""
        if self.redealt:
            return "B deals a step's samples to its passes otherwise: they are compared as one"
        counts = ((self.ranks, "ranks"), (self.passes, "passes"))
        parts = [f"{count} {what}" for count, what in counts if count > 1]
        side = self.side.upper()
        if self.all:
            return f"{side}'s {' and '.join(parts)} are compared as one"
        return f"each {' and '.join(parts)} of {side} are compared as one"


def merged(
    fine: Table,
    coarse: Table,
    split: Split,
    names: Mapping[str, str],
    offset: int,
    factors: Sequence[float] = (),
) -> tuple[Table, Merged] | None:
    """Return the finer run's table, merged to the other run's split, and what was merged.

    None where shapes do not fit the split.
    fine: the run that does its work in more passes or ranks. coarse: the other run.
    names: the finer run's names -> the other's. offset: what to add to the finer run's steps to get
        the other's.
    factors: the numbers of which the best one multiplies the gradients, or a loss, of the parts; ()
        for those of the split.
    """
    groups = grouped(fine, coarse, split, names, offset, factors or split.factors)
    if not groups.split:
        return None
    for number, group in enumerate(groups.listed):
        if group.combined == "summed" and not summable(fine.dtypes[fine.dtype[group.rows[0]]]):
            groups.listed[number] = group._replace(combined="left out")
    factor = _scale(fine, coarse, groups, factors or split.factors)
    layout = _layout(fine, coarse, groups)
    kept = [
        group._replace(factor=group.factor * factor) if group.gradient else group
        for group in groups.listed
        if group.combined != "left out"
    ]
    single = len({tensor.rank for tensor in coarse.tensors}) == 1
    single &= split.passes == 1 or not coarse.pass_index.any()
    lines = tuple(_lines(fine, groups, factor))
    making = JointTable(fine, coarse, split, kept, layout)
    table = making.made()
    damaged = tuple(
        f"the values of {_name(fine, row)} at step {int(fine.step[row])} of {escape(fine.run)} are "
        "damaged in one of the parts: left out"
        for row in making.damaged
    )
    return table, Merged(split.side, split.passes, split.together, single, lines, damaged)


def _scale(fine: Table, coarse: Table, groups: RowGroups, factors: Sequence[float]) -> float:
    """Return the one of `factors` by which the parts' gradients are nearest to the other run's.

    1.0 where no gradient shows it. The factor depends on whether a part's loss is a mean over the
    part, or a share of the batch's mean.
    """
    ratios = []
    for group in [one for one in groups.listed if one.gradient and one.combined != "left out"][
        :SAMPLE
    ]:
        norm = float(np.sqrt(np.square(fine.figures["l2"][list(group.rows)]).sum()))
        if group.combined == "summed":
            norm = _norm(fine, group)
        other = float(coarse.figures["l2"][group.partner])
        if norm > 0 and other > 0 and np.isfinite(norm / other):
            ratios.append(norm / other)
    if not ratios:
        return 1.0
    ratio = float(np.median(ratios))
    return min(factors, key=lambda one: abs(np.log(ratio * one)))


def _norm(table: Table, group: RowGroup) -> float:
    """Return the norm of the sum of a group's parts; 0 where a part cannot be read."""
    raw = intact(table, group)
    if raw is None:
        return 0.0
    values = dtypes.decode(raw, table.dtypes[table.dtype[group.rows[0]]])
    return float(np.linalg.norm(values.astype(np.complex128)))


def _layout(fine: Table, coarse: Table, groups: RowGroups) -> str:
    """Return how the batch was dealt out to the parts, "block" or "strided".

    It is the layout in which the joined parts equal most of the other run's values.
    """
    some = [
        group
        for group in groups.listed
        if group.combined == "concatenated" and not group.gradient and fine.kept[group.rows[0]]
    ][:LOOKED_AT]
    hits = dict.fromkeys(LAYOUTS, 0)
    for group in some:
        goal = tuple(coarse.digest[group.partner].tolist())
        for layout in LAYOUTS:
            raw = intact(fine, group, layout)
            hits[layout] += raw is not None and halves_of(digest(raw)) == goal
    return max(LAYOUTS, key=lambda layout: hits[layout])


def _lines(fine: Table, groups: RowGroups, factor: float) -> Iterator[str]:
    run = escape(fine.run)
    if factor != 1.0:
        yield f"gradients of the parts of {run} are taken times {factor:.6g}, as means of parts are"
    left = [group for group in groups.listed if group.combined == "left out"]
    if left:
        names = dict.fromkeys(_name(fine, group.rows[0]) for group in left)
        more = ", …" * (len(names) > SHOWN)
        yield (
            f"{len(left)} records of {run} could not be put together and are left out (a part's "
            f"own, or without values): {', '.join(list(names)[:SHOWN])}{more}"
        )
    if groups.replicas:
        first, other = groups.replicas[0]
        ranks = [fine.tensors[fine.tensor[row]].rank for row in (first, other)]
        yield (
            f"ranks {ranks[0]} and {ranks[1]} of {run} hold different values of "
            f"{_name(fine, other)} at step {int(fine.step[other])}"
        )


def _name(table: Table, row: int) -> str:
    tensor = table.tensors[table.tensor[row]]
    return escape(join(tensor.name, tensor.kind))
