"""The digest of a tensor's values, over the bytes that a record of it would keep."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Final, TypeAlias

import torch
import xxhash

from anchorlib.capture.tensors import QUICK, is_for_many, is_plain, plain, quick_place

__all__ = ["Digester", "Near", "digest_of"]

_SPREAD: Final = 4
"""A tensor's span of memory is hashed whole only if it is at most so many times its own bytes."""

Near: TypeAlias = dict[tuple[int, int], bytes]
"""Digests of memory by address and number of bytes; valid only until something writes there."""

_Key: TypeAlias = tuple[bytes, torch.dtype, torch.Size, tuple[int, ...]]


class Digester:
    """Digests of the tensors of one step.

    A transposed tensor must be made contiguous before its digest can be taken, which takes ten
    times as long as the digest. Its memory as it lies is hashed instead, and serves as the key of a
    cache: equal bytes with equal dtype, shape and strides have an equal digest.
    """

    def __init__(self) -> None:
        self._ordered: dict[_Key, bytes | None] = {}

    def forget(self) -> None:
        """Drop the digests of the step that has ended."""
        self._ordered.clear()

    def digest(self, x: torch.Tensor, near: Near | None = None) -> bytes | None:
        """xxh3-128 of the values of `x`; None where `x` has no values that a record could keep.

        near: a cache for one view operation, whose input and output mostly share their memory.
        """
        memory = quick_place(x)
        if memory is not None:
            address, _, _, nbytes = memory
            if near is None:
                return _hashed(address, nbytes)
            digest = near.get((address, nbytes))
            if digest is None:
                digest = near[address, nbytes] = _hashed(address, nbytes)
            return digest
        if not is_plain(x):
            return None
        span = _span(x)
        if span is None:
            return digest_of(x)
        key = (_hashed(x.data_ptr(), span), x.dtype, x.shape, x.stride())
        if key not in self._ordered:
            self._ordered[key] = digest_of(x)
        return self._ordered[key]


def digest_of(x: torch.Tensor) -> bytes | None:
    """The digest of `x`, computed without a cache; None as for `Digester.digest`.

    The bytes are read where they lie: `x.numpy()` would make the storage of a user's tensor
    not resizable for good.
    """
    memory = quick_place(x)
    if memory is not None:
        return _hashed(memory[0], memory[3])
    if not is_plain(x):
        return None
    with torch.no_grad():
        values = plain(x).cpu().contiguous()
    return _hashed(values.data_ptr(), values.nbytes)


def _span(x: torch.Tensor) -> int | None:
    """Bytes from the first to the last element of a plain tensor that is not contiguous.

    None where these bytes cannot serve as a key: the tensor is not on the CPU, is lazily negated
    or conjugated (its bytes do not make its values), or is spread too thinly over its memory.
    """
    if not x.is_cpu or x.dtype not in QUICK or x.is_neg() or is_for_many(x.nbytes):
        return None
    last = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    span = (last + 1) * x.element_size()
    return span if prod(x.shape) and span <= _SPREAD * x.nbytes else None


def _hashed(address: int, nbytes: int) -> bytes:
    if not nbytes:
        return xxhash.xxh3_128_digest(b"")
    return xxhash.xxh3_128_digest((ctypes.c_char * nbytes).from_address(address))
