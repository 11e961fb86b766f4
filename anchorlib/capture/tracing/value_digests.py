"""Computes digests of tensors' values, over the bytes that a record of the tensor would keep."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from xxhash import xxh3_128_digest

from anchorlib.capture.tensors import PLAIN, is_plain, plain, quick_place
from anchorlib.capture.tracing.gathering import CopyMemory, Gathering
from anchorlib.capture.tracing.operand_layouts import Layouts, OperandLayout
from anchorlib.operations import OperandForm
from anchorlib.torch_private import data_address, function_modes

__all__ = ["Digester", "Near", "digest_of"]

Near: TypeAlias = dict[tuple[int, int], bytes]
"""Digests of memory by address and number of bytes; valid only until something writes there."""


class Digester:
    """Computes the digests of the tensors of one step, with a cache for non-contiguous tensors.

    The values of a transposed tensor must be put in order before their digest can be taken, which
    takes several times as long as the digest. So the tensor's memory is hashed as it lies, and the
    hash is the key of a cache: equal bytes with equal dtype, shape and strides have equal digests.

    layouts: the layouts (dtype, shape, strides) of tensors met so far; None: none yet.
    """

    def __init__(self, layouts: Layouts | None = None) -> None:
        self.layouts = layouts or Layouts()
        self._ordered: dict[tuple[bytes, OperandLayout], bytes] = {}
        self._copies = CopyMemory()

    def forget(self) -> None:
        """Drop the cached digests, as the step has ended."""
        self._ordered.clear()
        self.layouts.forget()

    def operands(
        self,
        names: Iterable[str],
        tensors: Iterable[torch.Tensor],
        wanted: Iterable[bool],
        near: Near | None = None,
    ) -> tuple[tuple[OperandForm, ...], bytes]:
        """Describe each tensor and digest its values; return all descriptions and all digests.

        The digests are joined in the order of the tensors. A tensor without a digest adds no bytes,
        and its description says so.
        names: the argument name of each tensor.
        wanted: for each tensor, whether its digest is wanted and its memory has been written.
        near: digests of memory that this operation's tensors share, to be reused and added to; None
        for no such cache.
        """
        forms: list[OperandForm] = []  # `list[OperandForm]()` takes most of a microsecond
        digests = b""
        layout_of = self.layouts.of
        for name, x, is_wanted in zip(names, tensors, wanted, strict=False):
            layout = layout_of(x)
            digest = self.digest(x, near, layout) if is_wanted else None
            if digest is None:
                forms.append(layout.unknown[name])
            else:
                forms.append(layout.known[name])
                digests += digest
        return tuple(forms), digests

    def digest(
        self, x: torch.Tensor, near: Near | None = None, layout: OperandLayout | None = None
    ) -> bytes | None:
        """Return the xxh3-128 digest of the values of `x`; None if no record could hold them.

        near: digests of memory that one operation's tensors share, reused and added to; None: no
        such cache. layout: the layout of `x`, if it is known already.
        """
        layout = layout or self.layouts.of(x)
        memory_at, gathering = layout.memory_at, layout.gathering
        address = 0 if memory_at is None else _address(x)
        if memory_at is None or not address:
            return digest_of(x)
        if near is None and gathering is None:
            return xxh3_128_digest(memory_at(address))
        digest = None if near is None else near.get((address, layout.span))
        if digest is None:
            digest = xxh3_128_digest(memory_at(address))
            if near is not None:
                near[address, layout.span] = digest
        if gathering is None:
            return digest
        ordered = self._ordered.get((digest, layout))
        if ordered is None:
            ordered = self._in_order(memory_at(address), layout, gathering)
            self._ordered[digest, layout] = ordered
        return ordered

    def _in_order(self, memory: Any, layout: OperandLayout, gathering: Gathering) -> bytes:
        """Return the digest of an array whose values do not lie in order in its `memory`."""
        with self._copies.lock:
            values = self._copies.of(layout.nbytes)
            gathering.read(memory, values)
            return xxh3_128_digest(values.data)


def digest_of(x: torch.Tensor) -> bytes | None:
    """Return the xxh3-128 digest of the values of `x`, uncached; None if no record could hold them.

    The bytes are read by their address and not through `x.numpy()`, after which the storage of a
    user's tensor could never be resized again.
    """
    memory = quick_place(x, data_address)
    if memory is not None:
        return _hashed(memory[0], memory[3])
    if not is_plain(x):
        return None
    with torch.no_grad():
        values = plain(x).cpu().contiguous()
    return _hashed_array(values)


def _address(x: torch.Tensor) -> int:
    """Return the address of the values of `x`; 0 where the values cannot be read at an address.

    A lazy clone is not materialized: a traced step takes no more memory than an untraced one. What
    the layout of `x` already tells is not checked again, since this runs thrice an operation.
    """
    try:
        if type(x) in PLAIN and x.is_cpu and not x.is_neg() and not function_modes():
            return data_address(x)
    except RuntimeError:  # no memory of its own
        pass
    return 0


def _hashed_array(values: torch.Tensor) -> bytes:
    """Return the digest of an array on the CPU whose values lie one after another.

    A tensor that is zero by definition, as forward-mode derivatives have them, has no memory until
    it is copied. Where this torch gives no addresses, a lazy clone is copied.
    """
    address = data_address(values) or values.data_ptr()
    if values.nbytes and not address:
        with torch.no_grad():
            values = torch.empty_like(values).copy_(values)
        address = values.data_ptr()
    return _hashed(address, values.nbytes)


def _hashed(address: int, nbytes: int) -> bytes:
    if not nbytes:
        return xxh3_128_digest(b"")
    return xxh3_128_digest((ctypes.c_char * nbytes).from_address(address))
