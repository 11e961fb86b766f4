"""Compiles `kernels` in another process, and links the object file that this process prints."""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["Compiling", "Function", "linked", "sealed"]

Function = Callable[..., int]

SCRIPT = Path(__file__).with_name("kernels.py")

_MARK: Final = b"\nanchorlib.summary.kernels\n"
_SEAL_BYTES: Final = 32


class Compiling:
    """A running process that compiles `kernels`, and prints an object file of 14 kB.

    awaited: whether somebody waits for the process: then it has its parent's priority, else a low
        one.
    The constructor raises ModuleNotFoundError where numba is not installed.
    """

    def __init__(self, *, awaited: bool = False) -> None:
        if find_spec("numba") is None:
            raise ModuleNotFoundError("numba is not installed")
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(SCRIPT), *["awaited"] * awaited],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # the pipe holds the whole file, which is read after its end
            stderr=subprocess.PIPE,
        )
        atexit.register(self._stop)

    def code(self, *, wait: bool) -> bytes | None:
        """Return the object file; None while the process is still compiling.

        wait: whether to wait until the process has ended. Raises ChildProcessError where that
        process failed, and in a process forked from the one that made this object. Once a call has
        returned a file or raised, there must be no further call.
        """
        if self._owner != os.getpid():
            raise ChildProcessError("it was begun by the process that this one was forked from")
        if not wait and self._process.poll() is None:
            return None
        printed, errors = self._process.communicate()
        atexit.unregister(self._stop)
        code = _unsealed(printed)
        if self._process.returncode or code is None:
            last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ChildProcessError(last_line or "nothing was compiled")
        return code

    def _stop(self) -> None:
        if self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()


def sealed(code: bytes) -> bytes:
    """Return what `kernels` prints: a mark, the SHA-256 of its object file, then the file."""
    return _MARK + sha256(code).digest() + code


def _unsealed(printed: bytes) -> bytes | None:
    """Return the object file from the output of a process; None if it is missing or incomplete."""
    # A site's start-up files may print, too: the object file follows the last mark.
    last = printed.rpartition(_MARK)[2]
    seal, code = last[:_SEAL_BYTES], last[_SEAL_BYTES:]
    return code if sha256(code).digest() == seal else None


def linked(code: bytes, arguments: Mapping[str, int]) -> dict[str, Function]:
    """Link an object file of `kernels` into this process; return its functions by name.

    arguments: for each function's name, how many arguments it takes. All are addresses and numbers,
        given as int. The first two are addresses of 8 bytes for a result and an exception, which
        the function never writes.

    The functions run without the GIL, and stay in memory to the end of the process, because a
    thread may be inside one. LLVM ends the process for a damaged object file: only a file that
    `Compiling` returned may be given.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in arguments}
    engine.detach()
    if not all(addresses.values()):
        raise LookupError("a function was not compiled")
    # On 64-bit machines an address is passed as such an integer is.
    types = {name: [ctypes.c_int64] * number for name, number in arguments.items()}
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int32, *types[name])(address)
        for name, address in addresses.items()
    }
