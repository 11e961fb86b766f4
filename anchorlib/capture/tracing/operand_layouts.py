"""How tensors lie in memory: the part of an operand's form that many operands of a step share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any, Final, TypeAlias

import torch

from anchorlib.capture.tensors import QUICK, dtype_name, is_for_many
from anchorlib.capture.tracing.gathering import Gathering
from anchorlib.operations import OperandForm

__all__ = ["Layouts", "OperandLayout"]

_SPREAD: Final = 4
"""A tensor's span of memory is hashed whole only if it is at most so many times its own bytes."""
_MANY: Final = 1 << 12
_STRIDED: Final = torch.strided
_Key: TypeAlias = tuple[torch.dtype, torch.Size, tuple[int, ...]]
_Memory: TypeAlias = Callable[[int], Any]


class _Forms(dict[str, OperandForm]):
    """The forms of the operands of one layout, by argument; each is made once."""

    def __init__(self, parts: tuple[Any, ...], *, has_digest: bool) -> None:
        super().__init__()
        self._parts, self._has_digest = parts, has_digest

    def __missing__(self, name: str) -> OperandForm:
        form: OperandForm = (name, *self._parts, self._has_digest)
        self[name] = form
        return form


class OperandLayout:
    """Element type, shape and strides of a tensor; no strides where it has none (sparse tensors).

    known, unknown: the forms of operands that have a digest, and of those that have none.
    nbytes: size of the values. span: size of the memory from the first to the last value.
    memory_at: gives that memory, by the address of the first value; None where a tensor of this
    layout is not read there.
    gathering: how the values are put in order; None where that memory holds them so, and nothing
    else.
    """

    __slots__ = ("gathering", "known", "memory_at", "nbytes", "span", "unknown")

    def __init__(
        self,
        dtype: torch.dtype,
        shape: tuple[int, ...],
        stride: tuple[int, ...] = (),
        span: int = 0,
    ) -> None:
        parts = dtype_name(dtype), shape, stride
        self.known = _Forms(parts, has_digest=True)
        self.unknown = _Forms(parts, has_digest=False)
        self.nbytes = prod(shape) * dtype.itemsize
        self.span = span
        self.gathering: Gathering | None = None
        self.memory_at: _Memory | None = (ctypes.c_char * span).from_address if span else None


class Layouts:
    """The layouts of tensors: each is made once, since a step has few and looks up thousands."""

    def __init__(self) -> None:
        self._known: dict[_Key, OperandLayout] = {}

    def forget(self) -> None:
        """Drop the layouts if there are many: other steps have other shapes."""
        if len(self._known) > _MANY:
            self._known.clear()

    def of(self, x: torch.Tensor) -> OperandLayout:
        """The layout of `x`."""
        try:
            if x.layout is not _STRIDED:
                return OperandLayout(x.dtype, () if x.is_nested else tuple(x.shape))
            key = (x.dtype, x.shape, x.stride())
        except RuntimeError:  # a nested tensor, which may be strided, has no shape to ask for
            return OperandLayout(x.dtype, ())
        return self._known.get(key) or self._new(key, x)

    def _new(self, key: _Key, x: torch.Tensor) -> OperandLayout:
        dtype, shape, stride = key
        layout = self._known[key] = OperandLayout(dtype, tuple(shape), stride, _span(x))
        if layout.memory_at and not x.is_contiguous():
            layout.gathering = Gathering(shape, stride, dtype.itemsize)
        return layout


def _span(x: torch.Tensor) -> int:
    """Bytes from the first to the last element of an array; 0 where they are not read as they lie.

    That is where the array is empty, is large enough for all threads of torch, or is spread too
    thinly over its memory, and where the bytes of its dtype do not make its values.
    """
    nbytes = x.numel() * x.element_size()
    if not nbytes or x.dtype not in QUICK or is_for_many(nbytes):
        return 0
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    span = (last + 1) * x.element_size()
    return span if span <= _SPREAD * nbytes else 0
