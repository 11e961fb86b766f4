"""The operations around an origin, in both runs: what the page draws of them, side by side.

Only where both runs were traced: the operation that made the record at the origin is found by the
record's digest, and what lies around it by its producers; no name is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from anchorlib.diagnosis import Comparison, Origin
from anchorlib.diagnosis.pairing import Alignment, Table
from anchorlib.errors import DamagedError
from anchorlib.graphs import Graph, Marks, around, graph_of, marks_of, place_of
from anchorlib.names import escape
from anchorlib.operations import Joined, Op, align_ops
from anchorlib.reading import Run
from anchorlib.report.layering import rows

__all__ = ["vicinities"]

Record: TypeAlias = tuple[Table, int]
MOST: Final = 3  # origins whose operations are drawn


def vicinities(comparison: Comparison) -> list[dict[str, Any]]:
    """What is drawn of the first origins, by their places in the comparison."""
    found = []
    if comparison.runs is not None:
        traced = _Traced(comparison)
        for number, origin in enumerate(comparison.origins[:MOST]):
            sides = traced.around(origin)
            if sides is not None:
                found.append({"origin": number, "sides": [_drawn(*side) for side in sides]})
    return found


@dataclass(slots=True)
class _Traced:
    """The operations of both runs, each rank read once."""

    comparison: Comparison
    _known: dict[tuple[int, int], list[Op]] = field(default_factory=dict)

    def around(self, origin: Origin) -> list[tuple[Graph, int]] | None:
        """Of A and of B a graph, and the place in it of what made the origin.

        None where a run did not trace that step, or no operation is known to have made the record.
        """
        if origin.evidence is None:
            return None
        alignment = origin.evidence[0].alignment
        records = _records(alignment, origin.evidence[1])
        steps = [self._step(side, record) for side, record in enumerate(records)]
        ends = [_maker(ops, record) for ops, record in zip(steps, records, strict=True)]
        names = [escape(self.comparison.a), escape(self.comparison.b)]
        drawn = []
        marks = _marks(alignment, steps, names)
        for ops, end, name, own in zip(steps, ends, names, marks, strict=True):
            if end is None:
                return None
            graph = graph_of(near := around(ops, end), name, marks=own)
            drawn.append((graph, [place_of(op) for op in near].index(place_of(end))))
        return drawn

    def _step(self, side: int, record: Record) -> list[Op]:
        table, row = record
        rank = table.tensors[table.tensor[row]].rank
        if (side, rank) not in self._known:
            assert self.comparison.runs is not None
            self._known[side, rank] = _ops(self.comparison.runs[side], rank)
        return [op for op in self._known[side, rank] if op.step == table.step[row]]


def _ops(run: Run, rank: int) -> list[Op]:
    """The operations of a rank; none where its log cannot be read, which `anchor verify` tells."""
    try:
        return run.ops(rank=rank) if rank in run.ranks else []
    except DamagedError:
        return []


def _records(alignment: Alignment, row: int) -> tuple[Record, Record]:
    """A record of A and its partner of B."""
    at = int(alignment.a_row.searchsorted(row))
    return (alignment.a, row), (alignment.b, int(alignment.b_row[at]))


def _maker(ops: Sequence[Op], record: Record) -> Op | None:
    table, row = record
    tensor = table.tensors[table.tensor[row]]
    maker = Joined(ops).maker(
        *(tensor.name, tensor.kind, table.digest[row].astype(">u8").tobytes().hex()),
        tuple(table.shapes[table.shape[row]]),
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
    )
    return maker if maker is not None and maker.outputs and not maker.view else None


def _marks(
    alignment: Alignment, steps: Sequence[Sequence[Op]], names: Sequence[str]
) -> tuple[Marks, Marks]:
    a, b = steps
    if not a or not b:
        return {}, {}
    renamed = {one.b: one.a for one in alignment.renamed}
    found = align_ops(a, b, names=renamed, step_offset=b[0].step - a[0].step)
    return ({}, {}) if found is None else marks_of(found, names[0], names[1])


# -- what the page's script draws


def _drawn(graph: Graph, end: int) -> dict[str, Any]:
    edges: dict[tuple[int, int], list[str]] = {}
    for place, node in enumerate(graph.nodes):
        for one in node.inputs:
            if one.maker is not None:
                edges.setdefault((one.maker, place), []).append(str(one.tensor))
    return {
        "run": graph.name,
        "nodes": [
            {
                "label": node.label,
                "stage": node.told.get("stage", ""),
                "module": node.told.get("module", ""),
                "told": list(_told(node.told)),
                "differs": node.mark,
                "end": place == end,
            }
            for place, node in enumerate(graph.nodes)
        ],
        "edges": [[*ends, ", ".join(tensors)] for ends, tensors in edges.items()],
        "rows": rows(len(graph.nodes), list(edges)),
    }


def _told(told: Mapping[str, str]) -> Iterator[str]:
    for name in ("arguments", "takes", "makes", "where"):
        if name in told:
            yield f"{name} {told[name]}"
