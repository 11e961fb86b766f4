"""The names of operations and modules in graphs.

A path leads to an operation's node: "backward/fc1/mm_28" has the stage, then module by module, then
the operation's label and number. Whatever a program calls its modules, each part of a path is
printable, holds no "/" and is not empty. Two names may become equal when they are cut or escaped;
paths stay unique, since each ends with the number of its operation.
"""

from __future__ import annotations

from typing import Final

from anchorlib.names import escape
from anchorlib.operations import Op

__all__ = ["cut", "domain_of", "label_of", "part", "scope_of"]

_LETTERS: Final = 300  # the most letters of a text about an operation
_PART: Final = 80  # the most letters of one part of a path
_DEEPEST: Final = 24  # the most parts of a module's path; the rest stays one part


def cut(text: str) -> str:
    """Return `text` made printable and cut to at most 300 characters, the last of them "…"."""
    shown = escape(text)
    return shown if len(shown) <= _LETTERS else f"{shown[: _LETTERS - 1]}…"


def label_of(op: Op) -> str:
    """Return an operation's label on its node: "add_" for "aten.add_.Tensor"."""
    return part(op.op.split(".")[1] if "." in op.op else op.op)


def domain_of(op: Op) -> str:
    """Return an operation's library: "aten" for "aten.add_.Tensor", "-" for a name without dots."""
    return part(op.op.split(".")[0] if "." in op.op else "")


def scope_of(op: Op, *, step: bool) -> tuple[str, ...]:
    """Return the parts of an operation's path before the last: its stage, then module by module.

    step: whether a part "step3" comes first, which a graph of several steps needs.
    """
    parts = [part for part in op.module.split(".", _DEEPEST) if part]
    first = (f"step{op.step}",) if step else ()
    return (*first, part(op.stage), *map(part, parts))


def part(text: str) -> str:
    """Return `text` as one part of a path: printable, "/" escaped, cut to 80 characters.

    The result is "-" where `text` is empty.
    """
    shown = escape(text).replace("/", r"\x2f") or "-"
    return shown if len(shown) <= _PART else f"{shown[: _PART - 1]}…"
