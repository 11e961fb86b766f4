"""Values that gradients reach in one run alone: the other run detaches, or disables gradients.

Both runs recorded the value, so that both have its anchor. Where a gradient of the value came back
in one run alone, the other run's graph ends behind the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anchorlib.diagnosis.causes import Frontier
from anchorlib.diagnosis.pairing import Table, opaque
from anchorlib.names import escape
from anchorlib.scope import TRAIN

__all__ = ["unreached"]

Array = np.ndarray[Any, Any]
Site = tuple[str, int, int]


def unreached(frontier: Frontier, row: int) -> list[str]:
    """Return a clause on a value of a row's step that only one run's backward reached; else [].

    Of several such values, the one nearest to the loss is named, which backward reaches first. Only
    values that both runs recorded count, on the row's rank. [] too where each run has values that
    the other's backward did not reach. row: a row of A, such as a gradient.
    """
    alignment = frontier.alignment
    a, b = alignment.a, alignment.b
    rank = a.tensors[a.tensor[row]].rank
    names = {renaming.b: renaming.a for renaming in alignment.renamed}
    step = int(a.step[row])
    paired = alignment.a_row[a.step[alignment.a_row] == step]
    values = _sites(a, paired, "value", rank, {})
    lone = [
        _sites(a, alignment.only_a[a.step[alignment.only_a] == step], "grad", rank, {}),
        _sites(
            b,
            alignment.only_b[b.step[alignment.only_b] == step + alignment.step_offset],
            "grad",
            rank,
            names,
        ),
    ]
    graphs = [_with_graphs(a, rank, {}), _with_graphs(b, rank, names)]
    reached = [
        {site: order for site, order in own.items() if site in values and site[0] in graph}
        for own, graph in zip(lone, graphs[::-1], strict=True)
    ]
    if bool(reached[0]) == bool(reached[1]):
        return []
    run, other = ("A", "B") if reached[0] else ("B", "A")
    (name, *_), _ = min((reached[0] or reached[1]).items(), key=lambda reach: reach[1])
    return [f"in {run} alone gradients come back to {escape(name)}: {other} detaches it"]


def _with_graphs(table: Table, rank: int, names: dict[str, str]) -> set[str]:
    """Return the names of the values that have a graph in a run's training forwards.

    A value without a graph needs no gradient, so that no graph is cut behind it.
    names: what A calls the tensors that B has renamed; empty for A itself.
    """
    in_training = (edges for edges in table.edges.get(rank, ()) if edges.phase == TRAIN)
    led = (edges for edges in in_training if not opaque(edges.ops))
    return {names.get(edges.name, edges.name) for edges in led if edges.parents}


def _sites(
    table: Table, rows: Array, kind: str, rank: int, names: dict[str, str]
) -> dict[Site, int]:
    """Return when each record of one kind and rank was made: (name, pass, call) -> its order.

    The order is the record's number in the order of execution.
    rows: row numbers of the table, among which the records are sought. names: what A calls the
    tensors that B has renamed; empty for A itself.
    """
    orders = {}
    for row in rows.tolist():
        tensor = table.tensors[table.tensor[row]]
        if tensor.kind == kind and tensor.rank == rank:
            name = names.get(tensor.name, tensor.name)
            site = (name, int(table.pass_index[row]), int(table.call[row]))
            orders[site] = int(table.order[row])
    return orders
