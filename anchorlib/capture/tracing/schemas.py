"""What an operation's schema says: names of its arguments, what it writes, whether it is a view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from anchorlib.torch_private import schema_of

__all__ = ["Default", "OpFacts", "facts_of", "setting"]

BLANK = ("aten::empty", "aten::new_empty")
_SILENT = ("profiler::", "prim::", "_c10d_functional::wait_tensor")


class Default(NamedTuple):
    """An argument that may be left out: its place, its name, and what it is then."""

    place: int
    name: str
    text: str


class OpFacts(NamedTuple):
    """Of one overload.

    defaults: the arguments that may be left out, but for those that are nothing then.
    writes: names of the arguments that it writes. silent: whether it computes nothing.
    blank: whether it makes memory that nobody has written yet.
    """

    name: str
    arguments: tuple[str, ...]
    defaults: tuple[Default, ...]
    writes: frozenset[str]
    view: bool
    silent: bool
    blank: bool


@cache
def facts_of(overload: Any) -> OpFacts:
    """What the schema of an overload says."""
    schema = schema_of(overload)
    written = [
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    space, _, base = schema.name.partition("::")
    return OpFacts(
        f"{space}.{base}.{schema.overload_name or 'default'}",
        tuple(argument.name for argument in schema.arguments),
        tuple(_defaults(schema.arguments)),
        frozenset(written),
        view,
        schema.name.startswith(_SILENT),
        schema.name.startswith(BLANK),
    )


def setting(value: Any) -> str:
    """An argument that is no tensor, as text: "none", "[1, 1]", "float32"."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(setting, value))}]"
    return str(value).removeprefix("torch.")


def _defaults(arguments: Iterable[Any]) -> Iterator[Default]:
    for place, argument in enumerate(arguments):
        if argument.has_default_value() and argument.default_value is not None:
            yield Default(place, argument.name, setting(argument.default_value))
