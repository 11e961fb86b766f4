"""The digest of a tensor's values, over the bytes that a record of it would keep."""

from __future__ import annotations

import ctypes

import torch
import xxhash

from anchorlib.capture.tensors import is_plain, plain, quick_place

__all__ = ["digest_of"]


def digest_of(x: torch.Tensor) -> bytes | None:
    """xxh3-128 of the values of `x`; None where it has none that a record could keep.

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


def _hashed(address: int, nbytes: int) -> bytes:
    if not nbytes:
        return xxhash.xxh3_128_digest(b"")
    return xxhash.xxh3_128_digest((ctypes.c_char * nbytes).from_address(address))
