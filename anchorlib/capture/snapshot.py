"""Copies of tensors: what a tensor was when it was observed, on the CPU, independent of it.

The bytes of small ones are taken. Large ones are copied into pooled buffers, whose pages are warm:
for 64 MB that costs one memcpy, where a clone pays for page faults too (8–9 times as much).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from anchorlib.dtypes import DTYPES
from anchorlib.errors import UnsupportedError
from anchorlib.summary import as_storage

__all__ = [
    "BufferPool",
    "QuickCopy",
    "Snapshot",
    "TorchArithmetic",
    "dtype_name",
    "is_plain",
    "plain",
    "quick_copy",
    "quick_raw",
    "skip_reason",
    "undisturbed",
]

_POOLED_BYTES = 32 << 10  # from here on a clone may have to fetch fresh pages
_MANY_BYTES = 2 << 20  # from here on torch copies with all its threads, and others may go on
_FREED = 1 << 40  # what lies in an emptied storage says its offset is its address
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001  # no public name
_tracing_state = torch._C._get_tracing_state  # noqa: SLF001
_PARTED = {
    torch.jagged,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
}
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_function_modes = torch._C._len_torch_function_stack  # noqa: SLF001

_WIDE = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}

# torch adds none of these, nor any fp8, to a tensor of another dtype.
_NEVER_MIXED = {torch.complex32, torch.uint16, torch.uint32, torch.uint64}

_STORED = {
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and str(dtype).removeprefix("torch.") in DTYPES
}

# Dtypes whose elements are stored as their bytes lie in memory, and what numpy is to take them
# for. Complex ones are not among them: the bytes of a lazy conjugate are not its values.
_QUICK = {
    dtype: DTYPES[str(dtype).removeprefix("torch.")].storage
    for dtype in _STORED
    if not dtype.is_complex
}

# Bytes, or a buffer of the pool that may be longer; dtype, shape and how many bytes.
QuickCopy = tuple[bytes | torch.Tensor, torch.dtype, torch.Size, int]

# The memory of this process as one array of chars: a slice of it is a copy, made in a third of the
# time that ctypes.string_at takes. Only what belongs to a tensor is ever sliced.
_memory: Any = (ctypes.c_char * sys.maxsize).from_address(0)

# ctypes.memmove gives Python's lock away for the time; to get it back takes longer than to copy.
_move = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of `dtype` without "torch."."""
    return str(dtype).removeprefix("torch.")


def is_plain(x: torch.Tensor) -> bool:
    """Whether `x` is an ordinary array of a dtype that can be stored as it is."""
    return (
        type(x) in _PLAIN
        and x.layout is torch.strided
        and x.dtype in _STORED
        and not x.is_nested
        and not _wrapped(x)
        and _tracing_state() is None
        and (x.is_cpu or _has_values(x))
        and _has_memory(x)
    )


def _has_memory(x: torch.Tensor) -> bool:
    """False where a storage was emptied under its tensors, as sharded training does.

    To read such a tensor ends the process.
    """
    known = x.is_cpu or x.is_cuda  # other devices may have no storage to ask
    return not (known and x.numel()) or x.untyped_storage().nbytes() > 0


def _has_values(x: torch.Tensor) -> bool:
    """The same of what is not on the CPU."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    return not (x.is_meta or capturing)


def quick_copy(x: torch.Tensor, pool: BufferPool) -> QuickCopy | None:
    """The bytes of an ordinary array on the CPU, as `QuickCopy`; None of any other.

    It is what most observations need, without the steps that theirs never take: no operation of
    torch runs, each of which costs more than copying a small array, and hands Python's lock to
    another thread.
    """
    try:
        if (
            type(x) in _PLAIN
            and not _function_modes()
            and x.is_cpu
            and (dtype := x.dtype) in _QUICK
            and x.is_contiguous()
            and not x.is_neg()
            and _tracing_state() is None
            # What has no memory of its own has no address either: it is 0, or asking raises.
            and (address := x.data_ptr())
            and (address > _FREED or _has_memory(x))
        ):
            shape = x.shape  # first: nested tensors have memory, but no shape
            nbytes = x.nbytes
            if nbytes < _POOLED_BYTES:
                return _memory[address : address + nbytes], dtype, shape, nbytes
            if nbytes < _MANY_BYTES or torch.get_num_threads() == 1:
                return _pooled(address, nbytes, pool), dtype, shape, nbytes
    except RuntimeError:
        pass
    return None


def _pooled(address: int, nbytes: int, pool: BufferPool) -> torch.Tensor:
    buffer = pool.take(nbytes)
    move = _move if nbytes < _MANY_BYTES else ctypes.memmove
    move(buffer.data_ptr(), address, nbytes)
    return buffer


def quick_raw(copy: QuickCopy) -> np.ndarray[Any, Any]:
    """The raw storage array of what `quick_copy` gave; shares its memory."""
    kept, dtype, shape, _ = copy
    memory = kept if isinstance(kept, bytes) else kept.numpy()
    return np.ndarray(shape, _QUICK[dtype], memory)


def skip_reason(x: torch.Tensor) -> str | None:
    """Why `x`, which is not plain, has no values to record here; None if it has.

    Raises UnsupportedError for a tensor subclass whose values cannot be told from its parts, and
    while a CUDA graph is captured.
    """
    kind = type(x).__name__
    if kind in {"FakeTensor", "FunctionalTensor"}:
        return "fake"
    if x.device.type == "meta":
        return "meta"
    if _tracing_state() is not None:
        return "jit.trace"
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            "an anchor inside CUDA graph capture would record once, at capture, and never at "
            "replay: anchor outside the captured region, or use torch.compile"
        )
    if x.layout is torch.strided and not x.is_nested:
        return _unusual_array(x)
    if x.layout in _PARTED:
        return None
    return "nested" if x.is_nested else f"layout {str(x.layout).removeprefix('torch.')}"


def _unusual_array(x: torch.Tensor) -> str | None:
    if type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:  # noqa: SLF001
        raise UnsupportedError(
            f"tensors of class {type(x).__name__} cannot be anchored: anchor the plain tensors "
            "inside it"
        )
    if not (_wrapped(x) or _has_memory(x)):
        return "memory given back"
    known = dtype_name(x.dtype) in DTYPES or x.is_quantized
    return None if known else f"dtype {dtype_name(x.dtype)}"


class BufferPool:
    """Page-warm buffers, used again and again.

    The pool holds at most `limit_bytes` in all, lent and free; beyond that buffers are made and
    thrown away as they come.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._free: dict[int, list[torch.Tensor]] = {}
        self._held = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """A flat uint8 buffer of `nbytes` or a little more, contents unspecified."""
        size = -(-nbytes // 16384) * 16384
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
            self._held += size
        # A buffer that is first touched under inference_mode could not be written outside it.
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8, device="cpu")

    def give_back(self, buffer: torch.Tensor) -> None:
        """`buffer` may be used again."""
        size = buffer.numel()
        with self._lock:
            if self._held <= self._limit:
                self._free.setdefault(size, []).append(buffer)
                return
            self._held -= size
            self._shed()

    def _shed(self) -> None:
        """Forget free buffers of other sizes until the pool is within its limit."""
        for size in list(self._free):
            while self._free[size] and self._held > self._limit:
                self._free[size].pop()
                self._held -= size
            if not self._free[size]:
                del self._free[size]


class Snapshot:
    """One tensor's values, kept: contiguous, no part of any graph, and on the CPU unless `wide`.

    wide: in the dtype that sums are taken in, on the tensor's own device.
    """

    __slots__ = ("_buffer", "_pool", "_raw", "tensor")

    def __init__(self, x: torch.Tensor, pool: BufferPool, *, wide: bool = False) -> None:
        self._pool = pool
        self._buffer: torch.Tensor | None = None
        self._raw: np.ndarray[Any, Any] | None = None
        with undisturbed():
            self.tensor = _widened(plain(x)) if wide else self._copy(plain(x))

    def _copy(self, x: torch.Tensor) -> torch.Tensor:
        nbytes = x.numel() * x.element_size()
        if nbytes < _POOLED_BYTES:
            return _clone(x)
        self._buffer = self._pool.take(nbytes)
        kept = self._buffer[:nbytes].view(x.dtype).view(x.shape)
        with torch.no_grad():
            kept.copy_(x)
        return kept

    def raw(self) -> np.ndarray[Any, Any]:
        """Its raw storage on the CPU; shares its memory where it is there already."""
        if self._raw is None:
            self._raw, _ = as_storage(self.tensor)
        return self._raw

    def release(self) -> None:
        """Nobody reads `tensor` any more."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)


def plain(x: torch.Tensor) -> torch.Tensor:
    """`x` without graph, lazy conjugation or quantisation; the same memory where possible."""
    x = x.detach()
    if x.is_quantized:
        x = x.dequantize()
    if x.is_conj():
        x = x.resolve_conj()
    return x.resolve_neg() if x.is_neg() else x


def undisturbed() -> AbstractContextManager[object]:
    """A context in which no mode of the user's sees our operations.

    Selective checkpointing, FlopCounter or `with torch.device(...)` would otherwise act on them.
    """
    return _without_modes() if _dispatch_modes() or _function_modes() else _NOTHING


@contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001
        yield


_NOTHING: AbstractContextManager[None] = nullcontext()


def _widened(x: torch.Tensor) -> torch.Tensor:
    # In inference mode the total would be an inference tensor, which nothing can add to later.
    with torch.inference_mode(False), torch.no_grad():
        return x.to(_wide(x.dtype), copy=True, memory_format=torch.contiguous_format)


def _clone(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "cpu":
        return x.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return x.clone(memory_format=torch.contiguous_format)


class TorchArithmetic:
    """What folding means for tensors: sums are taken where the tensor is, in a wide dtype."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool

    def copy(self, x: torch.Tensor, /) -> Snapshot:
        """A copy of `x` on the CPU."""
        return Snapshot(x, self._pool)

    def recopy(self, kept: Snapshot, x: torch.Tensor, /) -> Snapshot:
        """A copy of `x` on the CPU; the buffer of `kept` goes back to the pool first."""
        kept.release()
        return Snapshot(x, self._pool)

    def widen(self, x: torch.Tensor, /) -> Snapshot:
        """A copy of `x` on its device, in the dtype that its sums are taken in."""
        return Snapshot(x, self._pool, wide=True)

    def add(self, kept: Snapshot, x: torch.Tensor, /) -> None:
        """Add `x` to `kept`, in place."""
        with undisturbed(), torch.inference_mode(False), torch.no_grad():
            x = plain(x)
            if (x.is_floating_point() and x.itemsize == 1) or x.dtype in _NEVER_MIXED:
                x = x.to(kept.tensor.dtype)
            kept.tensor.add_(x)

    def shapes(self, kept: Snapshot, x: torch.Tensor, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of both."""
        return tuple(kept.tensor.shape), tuple(x.shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _WIDE:
        return _WIDE[dtype]
    return torch.float32 if dtype.is_floating_point else torch.int64
