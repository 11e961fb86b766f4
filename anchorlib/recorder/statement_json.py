"""Definitions and statements as JSON, as slots of kind `TOLD` hold them.

Definitions say what a stream's or layout's number stands for, before its first use. Statements are
gaps, lineage, entries of the header, and traced operations.
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

_encode = json.JSONEncoder(default=str).encode  # json.dumps would make an encoder at each call
_GAP, _EDGES, _PARENT = (tuple(f.name for f in fields(one)) for one in (Gap, Edges, Parent))


def stream_definition(number: int, key: tuple[str, str, str, str], *, keeps: bool) -> bytes:
    """The definition of a stream's number: it stands for one series in one phase.

    key: name, kind, mode, phase. keeps: whether the mode keeps values.
    """
    return _encoded({"stream": [number, *key, keeps]})


def layout_definition(number: int, dtype: str, shape: Sequence[int]) -> bytes:
    """The definition of a layout's number: it stands for a dtype, by torch's name, and a shape."""
    return _encoded({"layout": [number, dtype, list(shape)]})


def statement(
    gaps: Sequence[Gap],
    edges: Sequence[Edges],
    header: Mapping[str, Any],
    operations: Sequence[Entry] = (),
) -> bytes:
    """A statement: gaps, lineage, header entries and traced operations."""
    return _encoded(
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


def gaps_of(stated: Mapping[str, Any]) -> list[Gap]:
    """The gaps of a statement."""
    return [Gap(**fields) for fields in stated["gaps"]]


def edges_of(stated: Mapping[str, Any]) -> list[Edges]:
    """The lineage of a statement."""
    return [_edges(fields) for fields in stated["edges"]]


def operations_of(stated: Mapping[str, Any]) -> list[Entry]:
    """The entries of the operations' log in a statement."""
    return list(stated["operations"])


def _fields(one: Gap | Edges | Parent, names: Sequence[str]) -> dict[str, Any]:
    # dataclasses.asdict copies every value deeply, which costs thirty times as much.
    return {name: getattr(one, name) for name in names}


def _encoded(what: Mapping[str, Any]) -> bytes:
    return _encode(what).encode()


def _edges(values: dict[str, Any]) -> Edges:
    values |= {name: tuple(values[name]) for name in ("shape", "ops", "missing", "arguments")}
    values["inputs"] = tuple(map(tuple, values["inputs"]))
    values["parents"] = tuple(Parent(**parent) for parent in values["parents"])
    return Edges(**values)
