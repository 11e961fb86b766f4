"""Lineage as catalogue lines.

{"edges": {"name": "tanh1", "phase": "train", "pass": 0, "call": 0, "shape": [8, 4], "step": 0,
           "parents": [["fc1", 0, 0, null, ""]], "ops": ["TanhBackward0"], "inputs": [[-1]],
           "missing": [], "grad": true}, "attempt": 0}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anchorlib.record import Edges, Parent

__all__ = ["EdgesKey", "edges_key", "edges_line", "read_edges"]

EdgesKey = tuple[int, str, str, int, int, tuple[int, ...], int]


def edges_key(edges: Edges) -> EdgesKey:
    """What there is one statement of: attempt, name, phase, pass, call, shape, step."""
    return (
        edges.attempt,
        edges.name,
        edges.phase,
        edges.pass_index,
        edges.call,
        edges.shape,
        edges.step,
    )


def edges_line(edges: Edges) -> dict[str, Any]:
    """The line of one statement."""
    return {
        "edges": {
            "name": edges.name,
            "phase": edges.phase,
            "pass": edges.pass_index,
            "call": edges.call,
            "shape": edges.shape,
            "step": edges.step,
            "parents": [
                [one.name, one.call, one.steps_back, one.pass_index, one.phase]
                for one in edges.parents
            ],
            "ops": edges.ops,
            "inputs": edges.inputs,
            "missing": edges.missing,
            "grad": edges.grad,
        },
        "attempt": edges.attempt,
    }


def read_edges(entry: Mapping[str, Any]) -> Edges:
    """The statement of a line; raises KeyError, TypeError or ValueError for another's line."""
    told = entry["edges"]
    return Edges(
        name=told["name"],
        phase=told["phase"],
        pass_index=told["pass"],
        call=told["call"],
        shape=tuple(told["shape"]),
        step=told["step"],
        parents=tuple(Parent(*parent) for parent in told["parents"]),
        ops=tuple(told["ops"]),
        inputs=tuple(map(tuple, told["inputs"])),
        missing=tuple(told["missing"]),
        grad=told["grad"],
        attempt=entry["attempt"],
    )
