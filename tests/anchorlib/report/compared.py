"""Comparisons made of their parts, so that the page is tested without a judge of origins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anchorlib.diagnosis import Comparison, Counts, Divergence, Losses, Origin, RecordPlace
from anchorlib.diagnosis.pairing.alignment import Alignment
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables.making import table_of
from anchorlib.diagnosis.sizes.measurement import measure
from anchorlib.reading import Run


def compared(a: Run, b: Run, **changes: Any) -> Comparison:
    """A comparison whose one origin is the first pair that differs."""
    alignment = align(table_of(a), table_of(b))
    differing = alignment.differing
    measures = measure(alignment, differing)
    first, origins = None, []
    if len(differing):
        place = place_of(alignment, int(differing[0]))
        order = int(alignment.a.order[alignment.a_row[differing[0]]])
        first = Divergence(place, order, int(differing[0]))
        origins = [Origin(place, "rounding", ("TanhBackward0",), (), measures.at(0), max_ulp=2)]
    counts = Counts(
        matched=len(alignment),
        identical=len(alignment) - len(differing),
        differing=len(differing),
        only_a=len(alignment.only_a),
        only_b=len(alignment.only_b),
    )
    where = "" if first is None else f" first at step {first.place.step} in {first.place.name}"
    made = Comparison(
        a=a.name,
        b=b.name,
        verdict="suspect" if origins else "identical",
        sentence=f"{a.name} and {b.name} differ{where}." if origins else "No bit differs.",
        counts=counts,
        first=first,
        origins=origins,
        config_diff={},
        growth=[],
        losses=None if first is None else Losses("loss", first.place.step, None, None, ()),
        alignment=alignment,
        measures=measures,
    )
    return replace(made, **changes)


def place_of(alignment: Alignment, pair: int) -> RecordPlace:
    """The coordinates of a pair, as A has them."""
    table, row = alignment.a, int(alignment.a_row[pair])
    tensor = table.tensors[table.tensor[row]]
    return RecordPlace(
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
        call=int(table.call[row]),
        rank=tensor.rank,
        phase=table.phases[table.phase[row]],
        name=tensor.name,
        kind=tensor.kind,
    )
