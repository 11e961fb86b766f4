"""The origins of two runs, measured from a third run that is nearer to the truth than both.

Such a reference is, for example, a run in float64 or on the CPU. The reference's record of an
origin is found by aligning the reference with A; B's record is A's partner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anchorlib.diagnosis.judgement.origins.nearness import Nearness, nearness
from anchorlib.diagnosis.judgement.origins.origins import Origin
from anchorlib.diagnosis.pairing import Alignment, Table, align
from anchorlib.diagnosis.sizes import Measure, Measures, measure
from anchorlib.progress import Progress

__all__ = ["measured_from"]

Array = np.ndarray[Any, Any]
NOTHING = np.empty(0, np.int64)


def measured_from(
    reference: Table, origins: Sequence[Origin], *, progress: Progress | None = None
) -> tuple[Origin, ...]:
    """Return the origins of one comparison, each with its `nearness` to the reference.

    `nearness` says how far A and B are from the reference in the origin's record, or what lacks to
    say so. It is None for an origin without evidence.
    reference: the records of the reference run. origins: in the order that is returned.
    progress: called as `measure` calls it.
    """
    places = [n for n, origin in enumerate(origins) if origin.evidence is not None]
    evidence = [origin.evidence for origin in origins if origin.evidence is not None]
    if not evidence:
        return tuple(origins)
    alignment = evidence[0][0].alignment
    row_a = np.array([row for _, row in evidence], np.int64)
    row_b = _partners(alignment.a_row, alignment.b_row, row_a)
    aligned = align(reference, alignment.a, names=_names(reference, alignment)).settled()
    taken_apart = aligned.b is not alignment.a  # A's passes were merged, and its rows with them
    row = np.full(len(row_a), -1) if taken_apart else _partners(aligned.b_row, aligned.a_row, row_a)
    there = np.flatnonzero(row >= 0)
    sides = [
        _measures(aligned.a, table, row[there], rows[there], progress)
        for table, rows in ((alignment.a, row_a), (alignment.b, row_b))
    ]
    near = [Nearness(lacks=_missing(aligned, origins[n], taken_apart=taken_apart)) for n in places]
    scales = aligned.a.scale[row[there]], alignment.a.scale[row_a[there]]
    for at, which in enumerate(there.tolist()):
        far = _apart(origins[places[which]].measure, sides[0].at(at), *(s[at] for s in scales))
        near[which] = _near(sides, at, far)
    nearness_of_place = dict(zip(places, near, strict=True))
    return tuple(
        replace(origin, nearness=nearness_of_place.get(n)) for n, origin in enumerate(origins)
    )


def _names(reference: Table, alignment: Alignment) -> Mapping[str, str]:
    """Return the reference's names -> A's, for tensors that have B's name in the reference.

    Tensors that the reference calls as A does are left out: they need no renaming.
    alignment: that of A and B, which says which tensors they name differently.
    """
    own = {tensor.name for tensor in reference.tensors}
    return {renaming.b: renaming.a for renaming in alignment.renamed if renaming.a not in own}


def _partners(keys: Array, values: Array, wanted: Array) -> Array:
    """Return for each of `wanted` the value whose key equals it; -1 where there is no such key.

    keys, values: arrays of one length; `values[i]` belongs to the key `keys[i]`.
    """
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    partners: Array = np.where(keys[order][place] == wanted, values[order][place], -1)
    return partners


def _measures(
    reference: Table, table: Table, rows: Array, own: Array, progress: Progress | None
) -> Measures:
    """Return how far the rows `own` of `table` are from the rows `rows` of the reference, in pairs.

    table: the records of A or of B.
    """
    pairs = Alignment(
        a=reference,
        b=table,
        a_row=rows,
        b_row=own,
        equal=np.zeros(len(rows), bool),
        only_a=NOTHING,
        only_b=NOTHING,
    )
    return measure(pairs, np.arange(len(rows)), progress=progress)


def _apart(measure: Measure, from_reference: Measure, scale: float, scale_a: float) -> float:
    """Return how far B is from A, as ‖b − a‖₂ over the reference's norm; nan where it is unknown.

    It is unknown where the reference's norm is 0.
    measure: how far B is from A. from_reference: how far A is from the reference. scale, scale_a:
    the loss scales that the reference's norm and A's norm carry.
    """
    if not from_reference.norm or not scale_a:
        return math.nan
    norm = measure.norm / from_reference.norm * float(scale / scale_a)
    return measure.error_eps * measure.eps * norm


def _near(sides: Sequence[Measures], at: int, apart: float) -> Nearness:
    measure_a, measure_b = (side.at(at) for side in sides)
    if any(line.pair == at for side in sides for line in side.damaged):
        return Nearness(lacks="values are damaged: anchor verify")
    if "shape" in (measure_a.measured, measure_b.measured):
        return Nearness(lacks="its shape differs there")
    if "summary" in (measure_a.measured, measure_b.measured):
        return Nearness(lacks="values were not kept")
    return nearness(measure_a, measure_b, apart)


def _missing(alignment: Alignment, origin: Origin, *, taken_apart: bool) -> str:
    """Return why the reference has no record of an origin, in words.

    alignment: that of the reference (its `a`) with A (its `b`).
    taken_apart: whether the reference computes at once what A computes in parts.
    """
    if taken_apart:
        return "it does at once what A does in parts"
    kinds = {
        (renaming.b, tensor.kind)
        for renaming in alignment.renamed
        for tensor in alignment.a.tensors
        if tensor.name == renaming.a
    }
    kinds |= {(tensor.name, tensor.kind) for tensor in alignment.a.tensors}
    known = (origin.place.name, origin.place.kind) in kinds
    return "not recorded there" if known else "not recorded"
