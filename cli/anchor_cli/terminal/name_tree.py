"""Draws names of tensors as a tree, for `anchor names --tree`.

Each part between dots is a level; a line shows the kinds, dtypes and shapes of its name.

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
    """A node of the tree: one part of tensor names, between two dots.

    entries: the tensors whose name ends with this part.
    below: the nodes of the next parts, keyed by these parts.
    """

    entries: list[Entry] = field(default_factory=list)
    below: dict[str, _Node] = field(default_factory=dict)


def lines(entries: Sequence[Entry], screen: Screen) -> Iterator[str]:
    """Yields the lines of the tree, as a table.

    entries: the tensors, each as a dict as `anchor names --json` prints it.
    """
    root = _Node()
    for entry in entries:
        node = root
        for part in entry["name"].split("."):
            node = node.below.setdefault(part, _Node())
        node.entries.append(entry)
    rows = [_row(label, node) for label, node in _walked(root, "", screen, top=True)]
    return written(_COLUMNS, rows, screen)


def _walked(node: _Node, before: str, screen: Screen, *, top: bool) -> Iterator[tuple[str, _Node]]:
    """Yields all nodes below `node`, depth first, each after its label with the tree's lines.

    A node without records and with a single child shares one line with the child:
    "encoder.layers".

    before: the text, lines of the tree included, with which the labels begin.
    top: whether `node` is the root, whose children have no lines of the tree before them.
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
