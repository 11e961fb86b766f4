"""Reads files of dumped tensors without running any code in them.

.pt .pth    torch.save of a tensor, or of dicts and lists of them; weights_only, so no pickle
.npy .npz   numpy's own, without pickle

A file of a few bytes can stand for tensors of any size: compressed zeros, or one element expanded
to a million. So the tensors of a file are limited to a multiple of the file's size on disk.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from anchorlib.errors import AnchorError, UnsupportedError
from anchorlib.names import escape
from anchorlib.summary import as_storage

__all__ = ["SUFFIXES", "Dump", "read"]

Array = np.ndarray[Any, Any]
_DEEPEST = 32
# Ends the walk through lists that contain themselves, or each other many times.
_MOST_VALUES: Final = 1 << 16
_ROOM: Final = 256 << 20  # bytes of tensors that any file may hold, however small it is
_TIMES: Final = 16  # a larger file may hold tensors of so many times its own size
_TORCH = (".pt", ".pth")
_NUMPY = (".npy", ".npz")
SUFFIXES = (*_TORCH, *_NUMPY)


@dataclass(frozen=True, slots=True)
class Dump:
    """One tensor that was read from a file.

    keys: the keys of the dicts, and positions in the lists, around the tensor, outermost first.
    raw: the tensor's values as they are stored (bfloat16 as uint16), C-contiguous.
    dtype: torch's name of the tensor's element type.
    """

    keys: tuple[str, ...]
    raw: Array
    dtype: str


def read(path: Path) -> tuple[list[Dump], list[str]]:
    """Returns the tensors of a file, in order, and the names of its values that are no tensors.

    Such a name is the value's keys, joined by dots. Raises UnsupportedError, with a text of one
    line, for a file that is no dump, needs pickle or holds no tensor, for a tensor that cannot be
    an array, and for tensors that take far more memory than their file takes on the disk.
    """
    with _opened(path) as file:
        room = max(_ROOM, _TIMES * os.fstat(file.fileno()).st_size)
        held = _loaded(file, path.suffix.lower(), room)
    dumps: list[Dump] = []
    others: list[str] = []
    for number, (keys, value) in enumerate(_leaves(held)):
        if number == _MOST_VALUES:
            raise UnsupportedError(f"holds more than {_MOST_VALUES:,} values")
        if not _is_array(value):
            others.append(".".join(keys) or type(value).__name__)
            continue
        room -= _nbytes(value)
        _check_room(room)
        dumps.append(Dump(keys, *_storage(value)))
    if not dumps:
        raise UnsupportedError("holds no tensor")
    return dumps, others


def _opened(path: Path) -> IO[bytes]:
    """Opens a file for reading and never blocks; a pipe to which nobody writes would block.

    Raises UnsupportedError for a pipe or device, and for a file that cannot be opened.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise UnsupportedError(f"cannot be read: {error.strerror or _line(error)}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnsupportedError("is a pipe or a device, no file")
    return file


def _loaded(file: IO[bytes], suffix: str, room: int) -> Any:
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as parts:
                _check_room(room - sum(part.file_size for part in parts.infolist()))
        file.seek(0)
        if suffix in _NUMPY:
            return _of_numpy(file)
        # Imported by name: the command line does not depend on torch.
        return import_module("torch").load(file, map_location="cpu", weights_only=True)
    except UnsupportedError:
        raise
    except OSError as error:
        raise UnsupportedError(f"cannot be read: {error.strerror or _line(error)}") from None
    except Exception as error:  # noqa: BLE001  # loaders raise any error for a file that is no dump
        raise UnsupportedError(_reason(error)) from None


def _check_room(left: int) -> None:
    if left < 0:
        raise UnsupportedError(
            f"holds tensors of more than {_TIMES} times its size, and of more than "
            f"{_ROOM >> 20} MiB; save them contiguous and without compression"
        )


def _of_numpy(file: IO[bytes]) -> Any:
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        return {name: loaded[name] for name in loaded.files}


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnpicklingError" or "pickle" in str(error):
        return (
            "needs pickle, which could run anything, or is no dump; save tensors, or dicts and "
            "lists of them"
        )
    return f"is no dump that can be read: {_line(error)}"


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return escape(text if len(text) <= 120 else f"{text[:117]}...")


def _leaves(
    held: Any, keys: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if depth > _DEEPEST:
        raise UnsupportedError(f"is nested more than {_DEEPEST} deep")
    if isinstance(held, Mapping):
        inside = [(str(key), value) for key, value in held.items()]
    elif isinstance(held, list | tuple):
        inside = [(str(number), value) for number, value in enumerate(held)]
    else:
        yield keys, held
        return
    for key, value in inside:
        yield from _leaves(value, (*keys, key), depth + 1)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "layout"))


def _storage(value: Any) -> tuple[Array, str]:
    layout = str(getattr(value, "layout", "torch.strided"))
    if layout != "torch.strided" or getattr(value, "is_meta", False):
        what = "a meta tensor" if layout == "torch.strided" else f"a {layout[6:]} tensor"
        raise UnsupportedError(f"holds {what}, which is no plain array")
    try:
        raw, dtype = as_storage(value)
        return np.require(raw, requirements=["C"]), dtype
    # AnchorError: an unknown element type. The others: more dimensions than numpy allows, or too
    # little memory.
    except (AnchorError, ValueError, RuntimeError, MemoryError) as error:
        raise UnsupportedError(f"holds what cannot be stored: {_line(error)}") from None


def _nbytes(value: Any) -> int:
    """Returns the bytes that a tensor takes as a contiguous array.

    That is more than the tensor takes now if torch has expanded it (repeats one stored element).
    """
    if isinstance(value, np.ndarray):
        return value.nbytes
    return int(value.numel() * value.element_size())
