"""Selectors of `trace(values=...)`: which tensors of which traced operations are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from anchorlib.errors import OptionError, UnknownTensorError
from anchorlib.names import Selector, is_operand_kind, matches, parse, quoted, split
from anchorlib.operations import base_name, kept_name

__all__ = ["Called", "WantedValues", "check_values"]

NAMED: Final = "'aten.tanh_backward', 'fc1', 'encoder.*/mm' or 're:.*softmax.*'"


def check_values(values: object) -> tuple[Selector, ...]:
    """Return the selectors in the option `values` of `trace`, which is one text or several.

    Raises OptionError for anything else, and for a text that is not a selector.
    """
    texts = [values] if isinstance(values, str) else values
    if not isinstance(texts, Iterable):
        raise OptionError(f"values of trace are selectors, as {NAMED}, not {values!r}")
    return tuple(map(_selector, texts))


def _selector(text: object) -> Selector:
    if not isinstance(text, str):
        raise OptionError(f"a selector in values of trace is a text, as {NAMED}, not {text!r}")
    name, kind = split(text)
    if not name:
        raise OptionError(f"a selector in values of trace is empty: name an operation, as {NAMED}")
    if kind is not None and not is_operand_kind(kind):
        raise OptionError(
            f"{quoted(text)} in values of trace: tensors of operations have the kinds "
            f"op.in.ARGUMENT and op.out, not {kind}"
        )
    try:
        return parse(text)
    except UnknownTensorError as error:
        raise OptionError(
            f"a selector of operations or modules in values of trace: {error.args[0]}"
        ) from None


class Called(NamedTuple):
    """What selectors see of an operation: its full name, its origin and its module.

    op: the full name, such as "aten.mm.default". origin: the operation that a compiler decomposed
    into this operation; "" if there was none. module: the name of the module that ran the
    operation; "" where none did.
    """

    op: str
    origin: str
    module: str

    @property
    def name(self) -> str:
        """The name under which tensors of the operation are recorded."""
        return kept_name(self.module, self.op)

    def texts(self) -> Iterator[str]:
        """Yield all texts by which a selector may name the operation."""
        for op in filter(None, (self.op, self.origin)):
            for text in (op, op.rpartition(".")[0], base_name(op)):
                yield text
                yield kept_name(self.module, text)
        if self.module:
            yield self.module


class WantedValues:
    """The selectors of one trace, with a note of which of them have selected a tensor so far."""

    def __init__(self, selectors: Iterable[Selector]) -> None:
        self._left = {selector.text: selector for selector in selectors}
        self._all = tuple(self._left.values())
        self._known: dict[tuple[Called, str], bool] = {}
        self._possible: dict[tuple[str, str], bool] = {}

    def takes(self, called: Called, kind: str) -> bool:
        """Return whether a selector selects tensors of `kind` (such as "op.out") of an operation.

        The selectors that do are removed from `unmatched`.
        """
        key = called, kind
        known = self._known.get(key)
        if known is None:
            takers = [one for one in self._all if self._takes(one, *key)]
            known = self._known[key] = bool(takers)
        return known

    def _takes(self, selector: Selector, called: Called, kind: str) -> bool:
        took = any(matches(selector, text, kind) for text in called.texts())
        if took:
            self._left.pop(selector.text, None)
        return took

    def may_take(self, op: str, origin: str, modules: Iterable[str]) -> bool:
        """Return whether a selector may select tensors of an operation that one of `modules` runs.

        op: the operation's full name. origin: the operation that a compiler decomposed into it; ""
        if there was none. This is asked before a compiled graph runs, when it is not yet known
        which of the graph's modules runs the operation.
        """
        key = op, origin
        known = self._possible.get(key)
        if known is None:
            called = Called(op, origin, "")
            known = self._possible[key] = any(_may(one, called.texts()) for one in self._all)
        return known or self._means_modules(modules)

    def _means_modules(self, modules: Iterable[str]) -> bool:
        """Return whether a selector may name one of `modules`, alone or as "MODULE/OPERATION"."""
        names = list(modules)
        return any("/" in one.text or _may(one, names) for one in self._all)

    @property
    def unmatched(self) -> list[str]:
        """The texts of the selectors that have selected no tensor so far."""
        return list(self._left)


def _may(selector: Selector, texts: Iterable[str]) -> bool:
    """Return whether `selector` names one of `texts`, whatever kind of tensor it is for."""
    return any(reading.has_name(text) for text in texts for reading in selector.readings)
