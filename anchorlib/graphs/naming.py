"""How operations and their modules are called in graphs.

Whatever a program calls its modules, a part of a path is printable, holds no "/", and is not empty;
what was cut or escaped stands for itself no more, but every path ends with the number of its
operation.
"""

from __future__ import annotations

from typing import Final

from anchorlib.names import escape
from anchorlib.operations import Op

__all__ = ["cut", "domain_of", "label_of", "part", "scope_of"]

_LETTERS: Final = 300  # of a text about an operation
_PART: Final = 80  # letters of one part of a path
_DEEPEST: Final = 24  # parts that a module's path may have


def cut(text: str) -> str:
    """A text as it can stand in a file: printable, and not longer than a reader reads."""
    shown = escape(text)
    return shown if len(shown) <= _LETTERS else f"{shown[: _LETTERS - 1]}…"


def label_of(op: Op) -> str:
    """What an operation is called on its node: "add_" of "aten.add_.Tensor"."""
    return part(op.op.split(".")[1] if "." in op.op else op.op)


def domain_of(op: Op) -> str:
    """Whose operation it is: "aten" of "aten.add_.Tensor"."""
    return part(op.op.split(".")[0] if "." in op.op else "")


def scope_of(op: Op, *, step: bool) -> tuple[str, ...]:
    """Stage, then module by module; before them the step, where a graph has several."""
    parts = [part for part in op.module.split(".", _DEEPEST) if part]
    first = (f"step{op.step}",) if step else ()
    return (*first, part(op.stage), *map(part, parts))


def part(text: str) -> str:
    """A text as it can stand in a path."""
    shown = escape(text).replace("/", r"\x2f") or "-"
    return shown if len(shown) <= _PART else f"{shown[: _PART - 1]}…"
