"""The JSON of definitions and statements, which slots of kind `STATEMENT` carry to the drain.

A definition says what the number of a stream (a series in one phase) or of a layout (a dtype and
shape) stands for, before its first use. Statements say what does not stand in the records: gaps
(counts of what was not recorded), lineage (what each value was computed from), entries of the run
header, and traced operations.
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
    """Return the JSON that says which series, in which phase, the stream `number` stands for.

    key: name, kind, mode, phase. keeps: whether the mode keeps values, and not summaries alone.
    """
    return _encoded({"stream": [number, *key, keeps]})


def layout_definition(number: int, dtype: str, shape: Sequence[int]) -> bytes:
    """Return the JSON that says which dtype (torch's name) and shape layout `number` stands for."""
    return _encoded({"layout": [number, dtype, list(shape)]})


def statement(
    gaps: Sequence[Gap],
    edges: Sequence[Edges],
    header: Mapping[str, Any],
    operations: Sequence[Entry] = (),
) -> bytes:
    """Return the JSON of one statement, which accompanies the records through the ring.

    gaps: counts of what was not recorded. edges: lineage, i.e. what each value was computed from.
    header: entries of the run header. operations: entries of the log of traced operations.
    """
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
    """Return the gaps (counts of what was not recorded) in the parsed JSON of a statement."""
    return [Gap(**fields) for fields in stated["gaps"]]


def edges_of(stated: Mapping[str, Any]) -> list[Edges]:
    """Return the lineage (what each value was computed from) in the parsed JSON of a statement."""
    return [_edges(fields) for fields in stated["edges"]]


def operations_of(stated: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of the log of traced operations in the parsed JSON of a statement."""
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
