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
"""Memory of which a tensor takes a smaller part than one in so many is not read whole for it."""

Near: TypeAlias = dict[tuple[int, int], bytes]
"""Digests of memory, by address and number of bytes, as long as nobody writes there."""

_Key: TypeAlias = tuple[bytes, torch.dtype, torch.Size, tuple[int, ...]]


class Digester:
    """Digests of the tensors of one step.

    A transposed tensor must be put in order before its digest can be taken, which takes ten times
    as long as the digest. The memory that it lies in, as it is, says which tensor it is: where the
    same bytes were in the same places before, the digest is known.
    """

    def __init__(self) -> None:
        self._ordered: dict[_Key, bytes | None] = {}

    def forget(self) -> None:
        """A step has ended."""
        self._ordered.clear()

    def digest(self, x: torch.Tensor, near: Near | None = None) -> bytes | None:
        """xxh3-128 of the values of `x`; None where it has none that a record could keep.

        near: the digests of one view, of what it took and made: mostly the same memory.
        """
        found = quick_place(x)
        if found is not None:
            address, _, _, nbytes = found
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
    """The digest of one tensor, of which nothing is known from before.

    The bytes are read where they lie. `x.numpy()` would make the storage of a user's tensor
    not resizable for good.
    """
    found = quick_place(x)
    if found is not None:
        return _hashed(found[0], found[3])
    if not is_plain(x):
        return None
    with torch.no_grad():
        values = plain(x).cpu().contiguous()
    return _hashed(values.data_ptr(), values.nbytes)


def _span(x: torch.Tensor) -> int | None:
    """From the first to the last byte of a plain tensor that is not in order; None to read it so.

    Its bytes are all that makes its values: it is on the CPU, and no lazy negation or conjugation.
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
