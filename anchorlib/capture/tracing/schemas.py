"""Reads an operation's schema: its arguments, which it writes, and whether it returns a view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from anchorlib.torch_private import schema_of

__all__ = ["Default", "OpFacts", "facts_of", "setting"]

BLANK = ("aten::empty", "aten::new_empty")
_STATISTICS = ("running_mean", "running_var")
UNMARKED = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::batch_norm_update_stats": _STATISTICS,
    "aten::batch_norm_gather_stats": _STATISTICS,
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
}
"""Arguments that operations write although their schemas do not say so, unless `training=False`."""
_UNMARKED_VIEWS = ("aten::_unsafe_view", "aten::_reshape_alias")
_SILENT = ("profiler::", "prim::", "_c10d_functional::wait_tensor")


class Default(NamedTuple):
    """An argument with a default: its position, its name, and the text "name=default"."""

    place: int
    name: str
    text: str


class OpFacts(NamedTuple):
    """Facts about one overload of an operation, from its schema.

    name: the full name ("aten.mm.default"). arguments: the names of all arguments. defaults: the
    arguments that have a default other than None. writes: names of the arguments that the schema
    says are written. trained: names of the arguments that the operation writes, without saying so
    in the schema, unless it is called with `training=False`. in_place: whether arguments are
    written and the operation's name ends in "_". view: whether the result is a view of an argument.
    shares: whether no argument is written and the result usually lies in the memory of an argument.
    silent: whether the operation computes no values. blank: whether the memory that it returns has
    not been written yet (`empty`).
    """

    name: str
    arguments: tuple[str, ...]
    defaults: tuple[Default, ...]
    writes: frozenset[str]
    trained: frozenset[str]
    in_place: bool
    view: bool
    shares: bool
    silent: bool
    blank: bool

    def written(self, settings: str) -> frozenset[str]:
        """Return the names of the arguments that a call writes.

        settings: the text of the call's arguments that are no tensors.
        """
        return self.trained if self.trained and "training=False" not in settings else self.writes


_known: dict[int, tuple[Any, OpFacts]] = {}


def facts_of(overload: Any) -> OpFacts:
    """Return the facts in the schema of an overload; cached, since each operation asks for them."""
    # By identity: the hash of an overload is a function in Python. While it is kept here, no other
    # overload can get its id.
    known = _known.get(id(overload))
    if known is None:
        known = _known[id(overload)] = overload, _new_facts(overload)
    return known[1]


def _new_facts(overload: Any) -> OpFacts:
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
        frozenset(UNMARKED.get(schema.name, ())),
        bool(written) and base.endswith("_"),
        view,
        (view or schema.name in _UNMARKED_VIEWS) and not written,
        schema.name.startswith(_SILENT),
        schema.name.startswith(BLANK),
    )


def setting(value: Any) -> str:
    """Return the text of an argument that is not a tensor: "tanh", "[1, 1]", "float32"."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(setting, value))}]"
    return str(value).removeprefix("torch.")


def _defaults(arguments: Iterable[Any]) -> Iterator[Default]:
    for place, argument in enumerate(arguments):
        if argument.has_default_value() and argument.default_value is not None:
            text = f"{argument.name}={setting(argument.default_value)}"
            yield Default(place, argument.name, text)
