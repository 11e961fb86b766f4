"""The few functions of CUDA's driver that are needed and that torch does not offer.

The driver is called directly, not the runtime: a failed call of the runtime leaves an error that
the next check of torch would raise in the training's own code.

Each function needs a context of the device to be current in the calling thread, as it is after any
work that the thread gave that device through torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

__all__ = ["Driver", "DriverError"]

_LIBRARY: Final = "libcuda.so.1"
_PORTABLE_AND_MAPPED: Final = 1 | 2  # usable in all contexts, and mapped for the device
_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_WITH_FENCE: Final = 0  # CU_STREAM_WRITE_VALUE_DEFAULT

_NOT_READY: Final = 600
_NO_CONTEXT: Final = 201
_CAPTURING: Final = range(900, 911)  # errors of graph capture, which tell nothing about the stream


class DriverError(RuntimeError):
    """Raised where a call of CUDA's driver failed."""


class Driver:
    """CUDA's driver, loaded as a library.

    Raises OSError where the machine has no such library, AttributeError where it is too old.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._name = self._function("cuGetErrorName", c_int, POINTER(c_char_p))
        self._register = self._function("cuMemHostRegister_v2", c_void_p, c_size_t, c_uint)
        self._unregister = self._function("cuMemHostUnregister", c_void_p)
        self._address = self._function(
            "cuMemHostGetDevicePointer_v2", POINTER(c_uint64), c_void_p, c_uint
        )
        self._write = self._function(
            "cuStreamWriteValue64_v2", c_void_p, c_uint64, c_uint64, c_uint
        )
        self._query = self._function("cuStreamQuery", c_void_p)
        self._exchange = self._function("cuThreadExchangeStreamCaptureMode", POINTER(c_int))

    def _function(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = arguments, c_int
        return function

    def _check(self, what: str, code: int) -> None:
        if code:
            name = c_char_p()
            self._name(code, byref(name))
            raise DriverError(f"{what}: {(name.value or b'error').decode()} ({code})")

    def register(self, address: int, nbytes: int) -> None:
        """Lock the pages of `nbytes` bytes from `address` on, so that devices can write to them.

        Raises DriverError where the driver refuses.
        """
        self._check("cuMemHostRegister", self._register(address, nbytes, _PORTABLE_AND_MAPPED))

    def unregister(self, address: int) -> None:
        """Unlock the pages that `register` locked at `address`; may wait for the device.

        Raises DriverError where the driver refuses.
        """
        self._check("cuMemHostUnregister", self._unregister(address))

    def device_address(self, address: int) -> int:
        """Return the address by which the current device writes to registered memory.

        address: the memory's address on the CPU. Raises DriverError for other memory.
        """
        there = c_uint64()
        self._check("cuMemHostGetDevicePointer", self._address(byref(there), address, 0))
        return there.value

    def write(self, stream: int, device_address: int, value: int) -> None:
        """Write the eight bytes of `value` to `device_address`, after all work now in `stream`.

        The call does not wait for them. Whoever sees these bytes sees all earlier writes of the
        stream: the driver's function has a fence.
        stream: the handle of a CUDA stream. Raises DriverError where the driver refuses.
        """
        self._check("cuStreamWriteValue64", self._write(stream, device_address, value, _WITH_FENCE))

    def is_idle(self, stream: int) -> bool:
        """Return whether all work in a CUDA stream is done, or has failed. Raises nothing.

        stream: the stream's handle. False is also returned where that cannot be asked now, as
            during the capture of a graph.
        """
        with self.beside_captures():
            code = int(self._query(stream))
        return code not in {_NOT_READY, _NO_CONTEXT} and code not in _CAPTURING

    @contextmanager
    def beside_captures(self) -> Iterator[None]:
        """Return a context manager in which calls of CUDA break no graph capture of other threads.

        Without it, some calls would make such a capture fail.
        """
        mode = c_int(_RELAXED)
        self._exchange(byref(mode))
        try:
            yield
        finally:
            self._exchange(byref(mode))
