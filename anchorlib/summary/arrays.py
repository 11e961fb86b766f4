"""Turns anything array-like into raw storage, without importing torch; histograms for users.

Raw storage is the bits of an array's elements in a dtype that numpy has, such as uint16 for
bfloat16.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import UnsupportedError
from anchorlib.summary.compiled import SCANS
from anchorlib.summary.exponent_counts import FloatTally, IntegerTally
from anchorlib.summary.float_bits import blocks, elements, layout_of, parts

if TYPE_CHECKING:
    from anchorlib.summary.histogram import Log2Histogram

__all__ = ["as_storage", "log2_histogram"]


def log2_histogram(array: Any, dtype: str | None = None) -> Log2Histogram:
    """Return the log2 histogram: how many elements lie between each power of two and the next.

    The counts are exact, as they are taken from the bits of the elements' exponents.

    array: a torch tensor (any device, bfloat16 and fp8 too), a numpy or ml_dtypes array, nested
        lists, a number: whatever numpy makes an array of.
    dtype: torch's name of the element type, where `array` is raw storage (uint16 of "bfloat16").

    Each part of a complex element counts as an element; True counts as 1.
    Raises UnknownDTypeError for elements that are no numbers, or not of the numpy dtype in which
    `dtype` is stored; UnsupportedError for a tensor that is no plain array (such as a sparse one),
    or whose memory was freed.
    """
    raw, name = as_storage(array, dtype)
    with np.errstate(all="ignore"):  # some processors report a signalling NaN when it is widened
        return _count(raw, name)


def as_storage(array: Any, dtype: str | None = None) -> tuple[np.ndarray[Any, Any], str]:
    """Return (array of the raw storage, torch's name of the element type) of anything array-like.

    The returned array need not be contiguous, and shares memory with `array` where it can. `array`
    may be whatever `log2_histogram` accepts; `dtype` is torch's name of the element type, if
    `array` is raw storage itself. Raises UnknownDTypeError and UnsupportedError where
    `log2_histogram` does.
    """
    raw, name = _of_tensor(array) if _is_tensor(array) else _of_array(np.asarray(_plain(array)))
    if dtype is None:
        return raw, name
    dtypes.of_storage(raw, dtype)
    return raw, dtype


def _count(raw: np.ndarray[Any, Any], name: str) -> Log2Histogram:
    flat, kind = parts(raw, dtypes.dtype(name))
    layout = layout_of(kind)
    if layout is None:
        integers = IntegerTally()
        for block in blocks(flat):
            integers.add(elements(block, kind))
        return integers.histogram()
    scan = SCANS.get(layout, flat)
    if scan is not None:
        return scan.tally(flat, kind).histogram(kind)
    floats = FloatTally(layout)
    for _finite in floats.add(flat, kind):
        pass
    return floats.histogram(kind)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def _plain(held: Any) -> Any:
    """Return `held` with each torch tensor in it, also in nested lists, replaced by a numpy array.

    Otherwise numpy would call the method `numpy()` of each tensor, after which torch lets nobody
    resize the tensor's storage.
    """
    if _is_tensor(held):
        return dtypes.decode(*_of_tensor(held))
    return [_plain(one) for one in held] if isinstance(held, list | tuple) else held


def _of_tensor(tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
    name = str(tensor.dtype).removeprefix("torch.")
    kind = dtypes.dtype(name)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if not _has_memory(plain):
        raise UnsupportedError(
            "this tensor has no memory that could be read: it is sparse, nested, of a class that "
            "wraps others, or its memory was given back; give the plain tensors inside it"
        )
    if kind.storage != kind.decoded:
        # numpy has no such type, so the bits are viewed as torch's integers of that width.
        torch = sys.modules[type(tensor.dtype).__module__]
        plain = plain.view(getattr(torch, kind.storage.name))
    # Not by `numpy()`: after that nobody can resize the tensor's storage any more.
    return np.from_dlpack(plain), name


def _has_memory(plain: Any) -> bool:
    try:
        has_memory = plain.data_ptr() != 0 and plain.untyped_storage().nbytes() > 0
    except RuntimeError:  # it has no storage to ask
        return False
    return not plain.is_nested and (has_memory or not plain.numel())


def _of_array(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    kind = dtypes.dtype(array.dtype.name)  # ml_dtypes calls its types as torch does
    if kind.storage != kind.decoded:
        return array.view(kind.storage), kind.name
    return array.astype(kind.storage, copy=False), kind.name
