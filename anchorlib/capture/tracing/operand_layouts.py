"""Layouts: dtype, shape and strides of tensors, each described once and shared.

A step has thousands of tensors that operations take or return, and few different layouts.
"""

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
"""A tensor that spans more than this many times its own bytes is not hashed by its whole span."""
_MANY: Final = 1 << 12
_STRIDED: Final = torch.strided
_Key: TypeAlias = tuple[torch.dtype, torch.Size, tuple[int, ...]]
_Memory: TypeAlias = Callable[[int], Any]


class _Forms(dict[str, OperandForm]):
    """The descriptions of tensors of one layout, by argument name; each is made once and kept.

    A description, an `OperandForm`, is what the log of operations stores of a tensor besides its
    digest.
    """

    def __init__(self, parts: tuple[Any, ...], *, has_digest: bool) -> None:
        super().__init__()
        self._parts, self._has_digest = parts, has_digest

    def __missing__(self, name: str) -> OperandForm:
        form: OperandForm = (name, *self._parts, self._has_digest)
        self[name] = form
        return form


class OperandLayout:
    """Element type, shape and strides of a tensor; no strides where it has none (sparse tensors).

    known, unknown: by argument name, what the log of operations stores of a tensor with a digest,
    and of one without. nbytes: size of the values. span: size of the memory, in bytes, from the
    first to the last value; 0 where tensors of this layout are not read by address. memory_at:
    returns that memory, from the address of the first value; None where `span` is 0. gathering:
    copies the values in order; None where the memory holds the values in order and nothing else,
    and where `span` is 0.
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
    """The layouts of tensors, each made once: a step has few layouts and thousands of look-ups."""

    def __init__(self) -> None:
        self._known: dict[_Key, OperandLayout] = {}

    def forget(self) -> None:
        """Drop all layouts if there are more than 4,096.

        Otherwise a program that always makes new shapes would fill memory.
        """
        if len(self._known) > _MANY:
            self._known.clear()

    def of(self, x: torch.Tensor) -> OperandLayout:
        """Return the layout of `x`: one object for all tensors of its dtype, shape and strides.

        A tensor without strides (sparse, nested) gets a new object at each call.
        """
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
    """Return the bytes from the first to the last element of `x`; 0 if not hashed in place.

    A tensor is not hashed in place if it is empty, so large that torch copies it with all threads,
    or spread too thinly over its memory, or if it has a dtype (such as a complex one) of which the
    memory need not hold the values themselves.
    """
    nbytes = x.numel() * x.element_size()
    if not nbytes or x.dtype not in QUICK or is_for_many(nbytes):
        return 0
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    span = (last + 1) * x.element_size()
    return span if span <= _SPREAD * nbytes else 0
