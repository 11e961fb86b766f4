"""The compiled put, a C function which writes records of ordinary tensors into the ring.

The ring is the shared memory in which records wait for the recorder, which stores them. The
compiled put exists only where a compiler built it at installation. It is used only with the version
of torch with which `tests/anchorlib/recorder` tested it, since it reads torch's structures in
memory. Elsewhere a put in Python writes the same bytes, and takes about a microsecond longer for
each record.
"""

from __future__ import annotations

from struct import pack
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import torch

from anchorlib.capture.tensors import PLAIN, QUICK
from anchorlib.recorder.layout import CONTROL_BYTES, VERSION
from anchorlib.torch_private import dlpack_exchange, function_modes, is_tracing, is_wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anchorlib.recorder import Ring
    from anchorlib.recorder._put import Putter

__all__ = ["compiled_putter", "layout_key"]

_TESTED = "2.13.0"
# Functions of torch that the compiled put calls from C, so a stand-in in Python would not do.
_ASKED = (function_modes, is_tracing, is_wrapped)
_DTYPES = tuple(sorted(QUICK, key=str))


def compiled_putter(ring: Ring, room: int) -> Putter | None:
    """Return the compiled put for `ring`; None where only the put in Python can be used.

    The ring's memory cannot be freed until the returned object is deleted.
    room: how many bytes of the ring the values of waiting records may take.
    """
    compiled = _compiled()
    if compiled is None or not _can_ask():
        return None
    return compiled.Putter(  # type: ignore[no-any-return]
        ring.memory,
        slots=ring.slot_count,
        slots_at=CONTROL_BYTES,
        payload_at=ring.payload_at,
        payload_bytes=ring.payload_bytes,
        room=room,
        exchange=dlpack_exchange,
        tensors=PLAIN,
        dtypes=_DTYPES,
        is_neg=torch.Tensor.is_neg,
        dtype=torch.Tensor.dtype,
        function_modes=function_modes,
        is_tracing=is_tracing,
        is_wrapped=is_wrapped,
    )


def layout_key(dtype: torch.dtype, shape: Sequence[int]) -> bytes | None:
    """Return the compiled put's key of a dtype and shape; None if it takes no such dtype.

    By the key, the compiled put sees whether a tensor has the dtype and shape of a stream.
    """
    if dtype not in _DTYPES:
        return None
    return pack(f"={1 + len(shape)}q", _DTYPES.index(dtype), *shape)


def _can_ask() -> bool:
    builtin = all(isinstance(one, BuiltinFunctionType) for one in _ASKED)
    return builtin and dlpack_exchange is not None


def _compiled() -> Any:
    if torch.__version__.partition("+")[0] != _TESTED:
        return None
    try:
        from anchorlib.recorder import _put
    except ImportError:
        return None
    # A compiled put left in a source tree may be older than the ring's layout.
    return _put if _put.LAYOUT_VERSION == VERSION else None
