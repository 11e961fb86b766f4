"""Names as a tree: each part between dots is a level; a line shows the kinds of its name.

block
├─ attention     value grad              float32  8x64
│  └─ weight     grad delta opt.exp_avg  float32  64x64
└─ mlp           value grad              float32  8x64
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchor_cli.terminal.screen import Screen
from anchor_cli.terminal.table import Column, written
from anchor_cli.terminal.words import shown_shape
from anchorlib.names import escape

__all__ = ["lines"]

_COLUMNS = [
    Column("name", cut=True, main=True),
    Column("kinds", cut=True),
    Column("dtype", cut=True, spare=1),
    Column("shape", cut=True),
    Column("records", right=True, spare=1),
]
_LINES = ("├─ ", "└─ ", "│  ", "   ")
_PLAIN = ("  ",) * 4
Entry = Mapping[str, Any]


@dataclass(slots=True)
class _Node:
    """One level of a name, with the entries of the name that ends at this level."""

    entries: list[Entry] = field(default_factory=list)
    below: dict[str, _Node] = field(default_factory=dict)


def lines(entries: Sequence[Entry], screen: Screen) -> Iterator[str]:
    """The entries of `anchor names --json` as a tree, in their order; the lines of a table."""
    root = _Node()
    for entry in entries:
        node = root
        for part in entry["name"].split("."):
            node = node.below.setdefault(part, _Node())
        node.entries.append(entry)
    rows = [_row(label, node) for label, node in _walked(root, "", screen, top=True)]
    return written(_COLUMNS, rows, screen)


def _walked(node: _Node, before: str, screen: Screen, *, top: bool) -> Iterator[tuple[str, _Node]]:
    """All nodes below `node` with their labels.

    A level without records of its own and with a single level below is joined to that, with a dot.
    """
    fork, last, along, gone = _LINES if screen.glyphs else _PLAIN
    names = list(node.below)
    for name, below in node.below.items():
        label, child = _joined(name, below)
        ends = name == names[-1]
        own = "" if top else (last if ends else fork)
        yield f"{before}{own}{escape(label)}", child
        deeper = before if top else before + (gone if ends else along)
        yield from _walked(child, deeper, screen, top=False)


def _joined(name: str, node: _Node) -> tuple[str, _Node]:
    while not node.entries and len(node.below) == 1:
        (part, node), *_ = node.below.items()
        name = f"{name}.{part}"
    return name, node


def _row(label: str, node: _Node) -> list[str]:
    kinds = dict.fromkeys(escape(entry["kind"]) for entry in node.entries)
    dtypes = dict.fromkeys(escape(entry["dtype"]) for entry in node.entries)
    shapes = dict.fromkeys(shown_shape(entry["shape"]) for entry in node.entries)
    records = sum(entry["records"] for entry in node.entries)
    cells = [" ".join(kinds), "|".join(dtypes), " ".join(shapes), str(records) if records else ""]
    return [label, *cells]
