"""Splits the arguments of an operation's call: tensors with names, and a text for all others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from anchorlib.capture.tracing.schemas import Default, setting
from anchorlib.operations import FLOAT

__all__ = ["Arguments", "tensors_in"]

_LISTS: Final = (list, tuple)  # isinstance with `list | tuple` takes thrice as long per argument
_TENSOR: Final = torch.Tensor
_PARAMETER: Final = torch.nn.Parameter
_INTS: Final = {int}
_CONSTANTS: Final = {torch.dtype, torch.layout, torch.memory_format, torch.device}


class Arguments:
    """The arguments of one call of an operation.

    tensors: the tensors among the arguments, those in lists included. names: for each tensor the
        name of its argument, such as "self", or "tensors[0]" in a list.
    text: all other arguments, such as "dim=1, keepdim=True", with the schema's default for each
        that the caller left out.
    floats: the floats among them. `text` has the placeholder `FLOAT` in place of each, so that
        calls which differ only in such numbers have one text.
    """

    __slots__ = ("floats", "names", "tensors", "text")

    def __init__(
        self,
        given: Sequence[str],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        defaults: Sequence[Default] = (),
    ) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.floats: list[float] = []
        texts: list[str] = []
        for name, value in zip(given, args, strict=False):
            kind = type(value)
            if kind is _TENSOR or kind is _PARAMETER:  # told apart here, this takes half as long
                self.tensors.append(value)
                self.names.append(name)
            elif value is not None:
                self._take(name, value, texts)
        for name, value in kwargs.items():
            self._take(name, value, texts)
        count = len(args)
        for place, name, text in defaults:
            if place >= count and name not in kwargs:
                texts.append(text)
        self.text = ", ".join(texts)

    def _take(self, name: str, value: Any, texts: list[str]) -> None:
        kind = type(value)
        if kind is int or kind is bool:
            texts.append(f"{name}={value}")
        elif kind is float:
            self.floats.append(value)
            texts.append(f"{name}={FLOAT}")
        elif isinstance(value, _TENSOR):
            self.tensors.append(value)
            self.names.append(name)
        elif kind is list and set(map(type, value)) == _INTS:  # sizes, as most lists are
            texts.append(f"{name}={value}")
        elif kind in _CONSTANTS:
            texts.append(f"{name}={_constant(value)}")
        elif value is not None and not self._list(name, value):
            texts.append(f"{name}={self._text(value)}")

    def _list(self, name: str, value: Any) -> bool:
        """Add the tensors in a list or tuple to `tensors`, with names; return whether it has any.

        name, value: an argument's name and value; a value that is no list or tuple has no tensors.
        """
        if not isinstance(value, _LISTS) or not value or type(value[0]) is int:
            return False
        numbered = [(at, x) for at, x in enumerate(value) if isinstance(x, torch.Tensor)]
        self.tensors += [x for _, x in numbered]
        self.names += [f"{name}[{at}]" for at, _ in numbered]
        return bool(numbered)

    def places(self, wanted: Collection[str]) -> tuple[int, ...]:
        """Return the indices in `tensors` of the tensors that belong to given arguments.

        wanted: the names of these arguments.
        """
        return tuple(
            [
                place
                for place, name in enumerate(self.names)
                if name in wanted or (name[-1] == "]" and name.partition("[")[0] in wanted)
            ]
        )

    def _text(self, value: Any) -> str:
        kind = type(value)
        if kind is int or (kind is list and set(map(type, value)) == _INTS):
            return str(value)
        if isinstance(value, float):
            self.floats.append(value)
            return FLOAT
        if isinstance(value, _LISTS):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, torch.Generator):
            return "generator"
        return setting(value).replace(FLOAT, " ")


@lru_cache(maxsize=256)
def _constant(value: Any) -> str:
    """Return the text of a dtype, layout or device; cached, as torch needs a microsecond for it."""
    return setting(value)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in `value`, an operation's result: a tensor, or nested lists of tensors."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
