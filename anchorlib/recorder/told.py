"""Statements on their way through the ring: what slots of kind `TOLD` say, as JSON.

definitions   whose records have which number, and which dtype and shape; before their first use
gaps, lineage, entries of the header
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from anchorlib.record import Edges, Gap, Parent

__all__ = ["edges_of", "gaps_of", "layout_definition", "statement", "stream_definition"]


def stream_definition(number: int, key: tuple[str, str, str, str], *, keeps: bool) -> bytes:
    """What a stream's number stands for: one series in one phase.

    key: name, kind, mode, phase. keeps: whether its mode keeps values.
    """
    return _told({"stream": [number, *key, keeps]})


def layout_definition(number: int, dtype: str, shape: Sequence[int]) -> bytes:
    """What a layout's number stands for: torch's name of a dtype, and a shape."""
    return _told({"layout": [number, dtype, list(shape)]})


def statement(gaps: Sequence[Gap], edges: Sequence[Edges], header: Mapping[str, Any]) -> bytes:
    """What is said beside the records."""
    return _told(
        {
            "gaps": [astuple(gap) for gap in gaps],
            "edges": [astuple(one) for one in edges],
            "header": dict(header),
        }
    )


def gaps_of(told: Mapping[str, Any]) -> list[Gap]:
    """The gaps of a statement."""
    return [Gap(*fields) for fields in told["gaps"]]


def edges_of(told: Mapping[str, Any]) -> list[Edges]:
    """The lineage of a statement."""
    return [_edges(fields) for fields in told["edges"]]


def _told(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what, default=str).encode()


def _edges(fields: Sequence[Any]) -> Edges:
    name, phase, pass_index, call, shape, step, parents, ops, inputs, missing, grad, attempt = (
        fields
    )
    return Edges(
        name,
        phase,
        pass_index,
        call,
        tuple(shape),
        step,
        tuple(Parent(*parent) for parent in parents),
        tuple(ops),
        tuple(map(tuple, inputs)),
        tuple(missing),
        grad,
        attempt,
    )
