"""Which tensors of which operations `trace(values=...)` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from anchorlib.errors import OptionError, UnknownTensorError
from anchorlib.names import Selector, is_operand_kind, matches, parse, quoted, split
from anchorlib.operations import base_name, kept_name

__all__ = ["Called", "WantedValues", "check_values"]

NAMED: Final = "'aten.tanh_backward', 'fc1', 'encoder.*/mm' or 're:.*softmax.*'"


def check_values(values: object) -> tuple[Selector, ...]:
    """The selectors in `values`: one text, or several of them.

    Raises OptionError for anything else, and for a text that is no selector.
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
    """How an operation is called: its full name, the operation before decomposition, its module."""

    op: str
    origin: str
    module: str

    @property
    def name(self) -> str:
        """The name of the operation's records."""
        return kept_name(self.module, self.op)

    def texts(self) -> Iterator[str]:
        """All texts that a selector may name the operation by."""
        for op in filter(None, (self.op, self.origin)):
            for text in (op, op.rpartition(".")[0], base_name(op)):
                yield text
                yield kept_name(self.module, text)
        if self.module:
            yield self.module


class WantedValues:
    """The selectors of one trace, and which of them have selected something."""

    def __init__(self, selectors: Iterable[Selector]) -> None:
        self._left = {selector.text: selector for selector in selectors}
        self._all = tuple(self._left.values())
        self._known: dict[tuple[Called, str], bool] = {}
        self._possible: dict[tuple[str, str], bool] = {}

    def takes(self, called: Called, kind: str) -> bool:
        """Whether the tensor of this kind of an operation is kept."""
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
        """Whether tensors of an operation may be kept that runs in one of these modules."""
        key = op, origin
        known = self._possible.get(key)
        if known is None:
            called = Called(op, origin, "")
            known = self._possible[key] = any(_may(one, called.texts()) for one in self._all)
        return known or self._means_modules(modules)

    def _means_modules(self, modules: Iterable[str]) -> bool:
        """Whether a selector names one of these modules, alone or before an operation."""
        names = list(modules)
        return any("/" in one.text or _may(one, names) for one in self._all)

    @property
    def unmatched(self) -> list[str]:
        """The selectors that have selected nothing so far."""
        return list(self._left)


def _may(selector: Selector, texts: Iterable[str]) -> bool:
    """Whether a selector names one of these texts, whichever kind it means."""
    return any(reading.has_name(text) for text in texts for reading in selector.readings)
