"""An operation's arguments taken apart: its tensors, each with its name, and all else as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from anchorlib.operations import FLOAT

__all__ = ["Arguments", "tensors_in"]


class Arguments:
    """The arguments of one call.

    tensors: each with the argument that it is of, and its name.
    text: all others. floats: the numbers that stand for `FLOAT` in it, in order.
    """

    __slots__ = ("floats", "tensors", "text")

    def __init__(
        self, names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.tensors: list[tuple[str, str, torch.Tensor]] = []
        self.floats: list[float] = []
        texts = []
        given = [*zip(names, args, strict=False), *kwargs.items()]
        for name, value in given:
            if isinstance(value, torch.Tensor):
                self.tensors.append((name, name, value))
            elif value is not None and not self._list(name, value):
                texts.append(f"{name}={self._text(value)}")
        self.text = ", ".join(texts)

    def _list(self, name: str, value: Any) -> bool:
        """Take the tensors of a list; whether it was one of tensors."""
        if not isinstance(value, list | tuple):
            return False
        found = [
            (name, f"{name}[{at}]", one)
            for at, one in enumerate(value)
            if isinstance(one, torch.Tensor)
        ]
        self.tensors += found
        return bool(found)

    def _text(self, value: Any) -> str:
        if isinstance(value, float):
            self.floats.append(value)
            return FLOAT
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, torch.Generator):
            return "generator"
        return str(value).removeprefix("torch.").replace(FLOAT, " ")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of what an operation returned."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
