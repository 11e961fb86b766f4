"""The operations around an origin in both runs, which the page draws side by side.

An origin is a record where a difference between runs A and B begins. Both runs must be traced: the
operation that made the record is found by the record's digest, and the operations around this
operation by following inputs. Names are not used to find operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from anchorlib.diagnosis import Comparison
from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Table
from anchorlib.graphs import Graph, Marks, graph_of, marks_of, ops_around
from anchorlib.names import escape
from anchorlib.operations import Op, RecordMakers
from anchorlib.reading import Run
from anchorlib.report.layering import rows

__all__ = ["vicinities"]

Record: TypeAlias = tuple[Table, int]
MOST: Final = 3  # origins whose operations are drawn
BOTH: Final = 2


def vicinities(comparison: Comparison) -> list[dict[str, Any]]:
    """Return drawings of the operations around the first origins, where differences begin.

    Each of at most MOST drawings is {"origin": the origin's index in the comparison, "sides": the
    graphs of run A and of run B, as the page's script draws them}. An origin is left out if the
    operation that made its record is not known in both runs. The result is [] unless both runs
    were traced.
    """
    if comparison.runs is None or comparison.ops is None:
        return []
    traced = _Traced(comparison.runs, marks_of(comparison.ops, *_names(comparison)))
    drawings = []
    for number, origin in enumerate(comparison.origins[:MOST]):
        drawn = [] if origin.evidence is None else traced.around(*_pair(origin.evidence))
        if len(drawn) == BOTH:
            sides = zip(drawn, _names(comparison), strict=True)
            both = [_drawn(graph, end, name) for (graph, end), name in sides]
            drawings.append({"origin": number, "sides": both})
    return drawings


@dataclass(slots=True)
class _Traced:
    """The traced operations of both runs; those of a rank are read once, when they are needed.

    runs: runs A and B. marks: for A and for B, the operations that differ from the other run's.
    """

    runs: tuple[Run, Run]
    marks: tuple[Marks, Marks]
    _known: dict[tuple[int, int], list[Op]] = field(default_factory=dict)

    def around(self, *records: Record) -> list[tuple[Graph, int]]:
        """Return, for each record, a graph of the operations around the one that made the record.

        With each graph comes the index, in the graph, of the operation that made the record. The
        list has no entry for a record whose step was not traced, or of which it is not known which
        operation made it.
        records: a record of run A and one of run B, each as (table of records, row in the table).
        """
        graphs = []
        for side, record in enumerate(records):
            ops = self._step(side, record)
            end = _maker(ops, record)
            if end is not None:
                near = ops_around(ops, end, self.marks[side])
                graph = graph_of(near, self.runs[side].name, marks=self.marks[side])
                graphs.append((graph, near.index(end)))
        return graphs

    def _step(self, side: int, record: Record) -> list[Op]:
        table, row = record
        rank = table.tensors[table.tensor[row]].rank
        if (side, rank) not in self._known:
            self._known[side, rank] = self.runs[side].ops(rank=rank)
        return [op for op in self._known[side, rank] if op.step == table.step[row]]


def _names(comparison: Comparison) -> tuple[str, str]:
    return escape(comparison.a), escape(comparison.b)


def _pair(evidence: tuple[Frontier, int]) -> tuple[Record, Record]:
    """Return run A's record at an origin (where a difference begins), and its partner in run B.

    Each record is given as (table of records, row in the table). evidence: the `Frontier` (the
    aligned records and their lineage) in which the origin was found, and the row of its record in
    A's table.
    """
    alignment, row = evidence[0].alignment, evidence[1]
    at = int(alignment.a_row.searchsorted(row))
    return (alignment.a, row), (alignment.b, int(alignment.b_row[at]))


def _maker(ops: Sequence[Op], record: Record) -> Op | None:
    table, row = record
    tensor = table.tensors[table.tensor[row]]
    maker = RecordMakers(ops).maker(
        *(tensor.name, tensor.kind, table.digest[row].astype(">u8").tobytes().hex()),
        tuple(table.shapes[table.shape[row]]),
        step=int(table.step[row]),
        pass_index=int(table.pass_index[row]),
    )
    return maker if maker is not None and maker.outputs and not maker.view else None


# -- the fields that the page's script draws


def _drawn(graph: Graph, end: int, run: str) -> dict[str, Any]:
    edges: dict[tuple[int, int], list[str]] = {}
    for place, node in enumerate(graph.nodes):
        for one in node.inputs:
            if one.maker is not None:
                edges.setdefault((one.maker, place), []).append(str(one.tensor))
    return {
        "run": run,
        "nodes": [
            {
                "label": node.label,
                "stage": node.attributes.get("stage", ""),
                "module": node.attributes.get("module", ""),
                "told": list(_attribute_lines(node.attributes)),
                "differs": node.mark,
                "end": place == end,
            }
            for place, node in enumerate(graph.nodes)
        ],
        "edges": [[*ends, ", ".join(tensors)] for ends, tensors in edges.items()],
        "rows": rows(len(graph.nodes), list(edges)),
    }


def _attribute_lines(facts: Mapping[str, str]) -> Iterator[str]:
    for name in ("arguments", "takes", "makes", "where"):
        if name in facts:
            yield f"{name} {facts[name]}"
