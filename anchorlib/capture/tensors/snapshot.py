"""Ways to copy the values of a tensor: by address, or by torch.

`quick_place` gives the address of an ordinary array on the CPU, as most observed tensors are, with
no operation of torch. `values_writer` copies all other tensors that have values. A `Snapshot`
keeps a tensor's values until the window of its mode ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from anchorlib.dtypes import DTYPES
from anchorlib.errors import UnsupportedError
from anchorlib.torch_private import (
    dispatch_modes,
    function_modes,
    is_tracing,
    is_wrapped,
    without_modes,
)

__all__ = [
    "PLAIN",
    "QUICK",
    "QuickPlace",
    "Snapshot",
    "TorchArithmetic",
    "dtype_name",
    "is_for_many",
    "is_plain",
    "plain",
    "quick_place",
    "skip_reason",
    "undisturbed",
    "values_writer",
]

_MANY_BYTES = 2 << 20  # from here on torch copies with all its threads, without Python's lock
_FREED = 1 << 40
"""A tensor in an emptied storage has its offset as address, which lies below this number."""

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_PARTED = {
    torch.jagged,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
}

_WIDE = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}

# Dtypes that torch, as with any fp8, cannot add to a tensor of another dtype.
_NEVER_MIXED = {torch.complex32, torch.uint16, torch.uint32, torch.uint64}

_STORED = {
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and str(dtype).removeprefix("torch.") in DTYPES
}

# Dtypes whose bytes in memory are the values. Complex dtypes are left out: a lazily conjugated
# tensor has other bytes than its values.
QUICK = {dtype for dtype in _STORED if not dtype.is_complex}

# Address in memory, dtype, shape, and number of bytes.
QuickPlace = tuple[int, torch.dtype, torch.Size, int]


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of `dtype` in torch, without the leading "torch."."""
    return str(dtype).removeprefix("torch.")


def is_plain(x: torch.Tensor) -> bool:
    """Return whether `x` is an ordinary array of a dtype that the store can keep."""
    return (
        type(x) in PLAIN
        and x.layout is torch.strided
        and x.dtype in _STORED
        and not x.is_nested
        and not is_wrapped(x)
        and not is_tracing()
        and (x.is_cpu or _has_values(x))
        and _has_memory(x)
    )


def _has_memory(x: torch.Tensor) -> bool:
    """Return whether `x` has memory; sharded training may free the memory of a living tensor.

    Reading a tensor whose memory was freed would crash the process.
    """
    known = x.is_cpu or x.is_cuda  # other devices may have no storage to ask
    return not (known and x.numel()) or x.untyped_storage().nbytes() > 0


def _has_values(x: torch.Tensor) -> bool:
    """Return whether `x`, which is not on the CPU, has values now.

    A meta tensor has none, nor has a CUDA tensor while a CUDA graph is captured.
    """
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return not (x.is_meta or capturing)


def quick_place(
    x: torch.Tensor, address_of: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
) -> QuickPlace | None:
    """Return where the values of an ordinary array on the CPU lie; None for any other tensor.

    The result is (address, dtype, shape, number of bytes). An ordinary array is contiguous, and
    neither complex nor lazily negated. None is also returned for an array of 2 MiB or more, if
    torch has more than one thread.
    No operation of torch runs: each would cost more than copying a small array, and would give
    Python's lock to another thread.
    address_of: returns the address of a tensor, 0 if the tensor has no memory.
    """
    try:
        if (
            type(x) in PLAIN
            and not function_modes()
            and x.is_cpu
            and (dtype := x.dtype) in QUICK
            and x.is_contiguous()
            and not x.is_neg()
            and not is_tracing()
            # A tensor without memory of its own has address 0, or raises RuntimeError.
            and (address := address_of(x))
            and (address > _FREED or _has_memory(x))
        ):
            shape = x.shape  # raises for nested tensors, which have memory, but no shape
            nbytes = x.nbytes
            if not is_for_many(nbytes):
                return address, dtype, shape, nbytes
    except RuntimeError:
        pass
    return None


def is_for_many(nbytes: int) -> bool:
    """Return whether torch makes a copy of `nbytes` bytes with all its threads.

    It does if the copy is large, and if it has more than one thread.
    """
    return nbytes >= _MANY_BYTES and torch.get_num_threads() > 1


def values_writer(x: torch.Tensor) -> Callable[[int], None]:
    """Return a function that copies the values of `x` to a given address of CPU memory.

    x: a plain array on any device.
    """

    def write(address: int) -> None:
        memory = (ctypes.c_char * x.nbytes).from_address(address)
        with undisturbed(), torch.inference_mode(False), torch.no_grad():
            # A tensor made under inference_mode could not be written outside it.
            kept = torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype).view(x.shape)
            kept.copy_(x)

    return write if x.numel() else lambda _address: None


def skip_reason(x: torch.Tensor) -> str | None:
    """Return a text on why `x` has no values to record now; None if it has values.

    x: a tensor for which `is_plain` is False.
    Raises UnsupportedError for a tensor subclass whose values are not known, and for a CUDA tensor
    while a CUDA graph is captured.
    """
    kind = type(x).__name__
    if kind in {"FakeTensor", "FunctionalTensor"}:
        return "fake"
    if x.device.type == "meta":
        return "meta"
    if is_tracing():
        return "jit.trace"
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "an anchor inside CUDA graph capture would record once, at capture, and never at "
            "replay: anchor outside the captured region, or use torch.compile"
        )
    if x.layout is torch.strided and not x.is_nested:
        return _unusual_array(x)
    if x.layout in _PARTED or x.is_nested:
        return None
    return f"layout {str(x.layout).removeprefix('torch.')}"


def _unusual_array(x: torch.Tensor) -> str | None:
    if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UnsupportedError(
            f"tensors of class {type(x).__name__} cannot be anchored: anchor the plain tensors "
            "inside it"
        )
    if not (is_wrapped(x) or _has_memory(x)):
        return "memory given back"
    known = dtype_name(x.dtype) in DTYPES or x.is_quantized
    return None if known else f"dtype {dtype_name(x.dtype)}"


class Snapshot:
    """A copy of one tensor's values: contiguous, and without a graph.

    The copy of a CUDA tensor is on the tensor's device if there is room, so that nothing waits for
    the copying. Every other copy is on the CPU.

    wide: True makes the copy in the wide dtype in which sums are computed, and on the tensor's own
        device in any case.
    """

    __slots__ = ("tensor",)

    def __init__(self, x: torch.Tensor, *, wide: bool = False) -> None:
        with undisturbed():
            self.tensor = _widened(plain(x)) if wide else _clone(plain(x))

    def renew(self, x: torch.Tensor) -> None:
        """Replace the copy by the values of `x`, in the same memory if dtype and shape fit."""
        with undisturbed(), torch.inference_mode(False), torch.no_grad():
            x = plain(x)
            if (x.dtype, x.shape) == (self.tensor.dtype, self.tensor.shape):
                self.tensor.copy_(x)
            else:
                self.tensor = _clone(x)


def plain(x: torch.Tensor) -> torch.Tensor:
    """Return `x` without graph, lazy conjugation, lazy negation or quantization.

    The result shares the memory of `x`, unless one of the last three is to be removed.
    """
    x = x.detach()
    if x.is_quantized:
        x = x.dequantize()
    if x.is_conj():
        x = x.resolve_conj()
    return x.resolve_neg() if x.is_neg() else x


def undisturbed() -> AbstractContextManager[object]:
    """Return a context manager in which the user's dispatch and function modes are switched off.

    Otherwise selective checkpointing, FlopCounter or `with torch.device(...)` would act on
    operations of ours.
    """
    return without_modes() if dispatch_modes() or function_modes() else _NOTHING


_NOTHING: AbstractContextManager[None] = nullcontext()


def _widened(x: torch.Tensor) -> torch.Tensor:
    # In inference mode the total would be an inference tensor, to which nothing can be added later.
    with torch.inference_mode(False), torch.no_grad():
        return x.to(_wide(x.dtype), copy=True, memory_format=torch.contiguous_format)


def _clone(x: torch.Tensor) -> torch.Tensor:
    # In inference mode the copy would be an inference tensor, which cannot be overwritten later.
    with torch.inference_mode(False), torch.no_grad():
        if x.is_cuda:
            try:
                return x.clone(memory_format=torch.contiguous_format)
            except torch.OutOfMemoryError:
                pass  # copy to the CPU instead
        return x.to("cpu", copy=True, memory_format=torch.contiguous_format)


class TorchArithmetic:
    """The `Arithmetic` of folds on torch tensors: sums are computed on the tensor's device."""

    def copy(self, x: torch.Tensor, /) -> Snapshot:
        """Return a copy of `x`."""
        return Snapshot(x)

    def recopy(self, kept: Snapshot, x: torch.Tensor, /) -> Snapshot:
        """Make `kept` a copy of `x`, and return `kept`.

        Its memory is used again if `x` has the dtype and shape of the old copy.
        """
        kept.renew(x)
        return kept

    def widen(self, x: torch.Tensor, /) -> Snapshot:
        """Return a copy of `x` on its device, in the wide dtype in which sums are computed."""
        return Snapshot(x, wide=True)

    def add(self, kept: Snapshot, x: torch.Tensor, /) -> None:
        """Add `x` to `kept`, in place."""
        with undisturbed(), torch.inference_mode(False), torch.no_grad():
            x = plain(x)
            if (x.is_floating_point() and x.itemsize == 1) or x.dtype in _NEVER_MIXED:
                x = x.to(kept.tensor.dtype)
            kept.tensor.add_(x)

    def shapes(self, kept: Snapshot, x: torch.Tensor, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of `kept` and of `x`."""
        return tuple(kept.tensor.shape), tuple(x.shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _WIDE:
        return _WIDE[dtype]
    return torch.float32 if dtype.is_floating_point else torch.int64
