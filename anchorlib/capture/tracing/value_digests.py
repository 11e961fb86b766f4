"""The digest of a tensor's values, over the bytes that a record of it would keep."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import torch
from xxhash import xxh3_128_digest

from anchorlib.capture.tensors import FREED, PLAIN, is_plain, plain, quick_place
from anchorlib.capture.tracing.operand_layouts import Layout, Layouts
from anchorlib.torch_private import function_modes

__all__ = ["Digester", "Near", "digest_of"]

Near: TypeAlias = dict[tuple[int, int], bytes]
"""Digests of memory by address and number of bytes; valid only until something writes there."""


class Digester:
    """Digests of the tensors of one step.

    A transposed tensor must be made contiguous before its digest can be taken, which takes ten
    times as long as the digest. Its memory as it lies is hashed instead, and serves as the key of a
    cache: equal bytes with equal dtype, shape and strides have an equal digest.

    layouts: those of the tensors whose digests were taken.
    """

    def __init__(self) -> None:
        self.layouts = Layouts()
        self._ordered: dict[tuple[bytes, Layout], bytes] = {}

    def forget(self) -> None:
        """Drop the digests of the step that has ended."""
        self._ordered.clear()
        self.layouts.forget()

    def digest(
        self, x: torch.Tensor, near: Near | None = None, layout: Layout | None = None
    ) -> bytes | None:
        """xxh3-128 of the values of `x`; None where `x` has no values that a record could keep.

        near: a cache for one view operation, whose input and output mostly share their memory.
        layout: that of `x`, if it is known already.
        """
        layout = layout or self.layouts.of(x)
        address = _address(x) if layout.memory_at else 0
        if not (layout.memory_at and address):
            return digest_of(x)
        if not layout.is_packed:
            return self._scattered(x, xxh3_128_digest(layout.memory_at(address)), layout)
        if near is None:
            return xxh3_128_digest(layout.memory_at(address))
        key = address, layout.nbytes
        digest = near.get(key)
        if digest is None:
            digest = near[key] = xxh3_128_digest(layout.memory_at(address))
        return digest

    def _scattered(self, x: torch.Tensor, memory: bytes, layout: Layout) -> bytes:
        """The digest of an array whose values do not lie one after another.

        memory: the digest of its memory as it lies.
        """
        digest = self._ordered.get((memory, layout))
        if digest is None:
            values = _in_order(x)
            digest = self._ordered[memory, layout] = _hashed(values.data_ptr(), values.nbytes)
        return digest


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


def _address(x: torch.Tensor) -> int:
    """The address of the values of `x`; 0 where they are not read there.

    Does not ask what the layout of `x` tells, as `quick_place` does: this runs thrice an operation.
    """
    try:
        if type(x) in PLAIN and x.is_cpu and not x.is_neg() and not function_modes():
            address = x.data_ptr()
            return address if address > FREED else 0
    except RuntimeError:  # no memory of its own
        pass
    return 0


def _in_order(x: torch.Tensor) -> torch.Tensor:
    """The values of an ordinary array on the CPU, one after another."""
    return x.detach().contiguous()


def _hashed(address: int, nbytes: int) -> bytes:
    if not nbytes:
        return xxh3_128_digest(b"")
    return xxh3_128_digest((ctypes.c_char * nbytes).from_address(address))
