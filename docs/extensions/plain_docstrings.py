"""Docstrings as they are written here, for autodoc: plain text becomes reStructuredText.

    name: what it means        a list of definitions, where a block begins with one
    what is indented           shown as it stands, and so are tables and drawings
    `code`                     code; every other character means itself

Classes that only the library makes (`made_by_the_library` in conf.py) are shown without the
arguments of their constructors.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.util.inspect import stringify_signature

FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.+)")
DRAWN = re.compile(r"[─│├└┬┐┘▶]|\S {2,}\S")
CODE = re.compile(r"`([^`]+)`")
# The constructor of a base that is mocked hides that of the class itself.
ANYTHING = "(*args: Any, **kwargs: Any)"


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring, its indentation already taken off, as reStructuredText."""
    blocks = (
        list(block) for empty, block in groupby(lines, lambda line: not line.strip()) if not empty
    )
    return [line for block in blocks for line in (*_block(block), "")]


def _block(lines: list[str]) -> Iterator[str]:
    if lines[0].startswith(" ") or sum(map(bool, map(DRAWN.search, lines))) > len(lines) / 2:
        yield "::"
        yield ""
        yield from (f"    {line}" for line in lines)
    elif FIELD.match(lines[0]):
        yield from _fields(lines)
    else:
        yield from map(_text, lines)


def _fields(lines: list[str]) -> Iterator[str]:
    """A list of definitions; what follows it without indentation is a paragraph."""
    rest = list(lines)
    while rest and (found := FIELD.match(rest[0])):
        names = ", ".join(f"``{name}``" for name in found[1].split(", "))
        yield f"* {names}: {_text(found[2])}"
        rest.pop(0)
        while rest and rest[0].startswith(" "):
            yield f"  {_text(rest.pop(0).strip())}"
    yield ""
    yield from map(_text, rest)


def _text(line: str) -> str:
    """A line of prose: `code` is code, and nothing else is markup."""
    parts = CODE.split(line)
    return "".join(
        rf"``{part}``\ " if at % 2 else re.sub(r"([\\*_|`])", r"\\\1", part)
        for at, part in enumerate(parts)
    )


def _on_docstring(
    _app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = restructured(lines)


def _on_signature(  # autodoc's arguments
    app: Any, what: str, name: str, value: Any, _options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    if what != "class":
        return None
    if name in app.config.made_by_the_library:
        return "", ""
    if signature == ANYTHING and "__init__" in vars(value):
        made = inspect.signature(value.__init__)
        own = made.replace(
            parameters=list(made.parameters.values())[1:], return_annotation=made.empty
        )
        return stringify_signature(own, unqualified_typehints=True), returned
    return None


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_config_value("made_by_the_library", set(), "env", [set, frozenset])
    app.connect("autodoc-process-docstring", _on_docstring)
    app.connect("autodoc-process-signature", _on_signature)
    return {"parallel_read_safe": True}
