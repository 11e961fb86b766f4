"""Statements on their way through the ring: what slots of kind `TOLD` say, as JSON.

definitions   whose records have which number, and which dtype and shape; before their first use
gaps, lineage, entries of the header, traced operations
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from anchorlib.operations import Entry
from anchorlib.record import Edges, Gap, Parent

__all__ = [
    "edges_of",
    "gaps_of",
    "layout_definition",
    "operations_of",
    "statement",
    "stream_definition",
]

_encode = json.JSONEncoder(default=str).encode  # `dumps` makes one at each call
_GAP, _EDGES, _PARENT = (tuple(f.name for f in fields(one)) for one in (Gap, Edges, Parent))


def stream_definition(number: int, key: tuple[str, str, str, str], *, keeps: bool) -> bytes:
    """What a stream's number stands for: one series in one phase.

    key: name, kind, mode, phase. keeps: whether its mode keeps values.
    """
    return _told({"stream": [number, *key, keeps]})


def layout_definition(number: int, dtype: str, shape: Sequence[int]) -> bytes:
    """What a layout's number stands for: torch's name of a dtype, and a shape."""
    return _told({"layout": [number, dtype, list(shape)]})


def statement(
    gaps: Sequence[Gap],
    edges: Sequence[Edges],
    header: Mapping[str, Any],
    operations: Sequence[Entry] = (),
) -> bytes:
    """What is said beside the records."""
    return _told(
        {
            "gaps": [_fields(gap, _GAP) for gap in gaps],
            "edges": [
                _fields(one, _EDGES) | {"parents": [_fields(p, _PARENT) for p in one.parents]}
                for one in edges
            ],
            "header": dict(header),
            "operations": operations,
        }
    )


def gaps_of(told: Mapping[str, Any]) -> list[Gap]:
    """The gaps of a statement."""
    return [Gap(**fields) for fields in told["gaps"]]


def edges_of(told: Mapping[str, Any]) -> list[Edges]:
    """The lineage of a statement."""
    return [_edges(fields) for fields in told["edges"]]


def operations_of(told: Mapping[str, Any]) -> list[Entry]:
    """The entries of the operations' log in a statement."""
    return list(told["operations"])


def _fields(one: Gap | Edges | Parent, names: Sequence[str]) -> dict[str, Any]:
    # dataclasses.asdict copies what it finds, which costs thirty times as much.
    return {name: getattr(one, name) for name in names}


def _told(what: Mapping[str, Any]) -> bytes:
    return _encode(what).encode()


def _edges(told: dict[str, Any]) -> Edges:
    told |= {name: tuple(told[name]) for name in ("shape", "ops", "missing", "arguments")}
    told["inputs"] = tuple(map(tuple, told["inputs"]))
    told["parents"] = tuple(Parent(**parent) for parent in told["parents"])
    return Edges(**told)
