"""Files of dumped tensors, read without running anything that stands in them.

.pt .pth    torch.save of a tensor, or of dicts and lists of them; weights_only, so no pickle
.npy .npz   numpy's own, without pickle
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.errors import AnchorError, UnsupportedError
from anchorlib.names import escape
from anchorlib.summary import as_storage

__all__ = ["SUFFIXES", "Dump", "read"]

Array = np.ndarray[Any, Any]
_DEEPEST = 32
_TORCH = (".pt", ".pth")
_NUMPY = (".npy", ".npz")
SUFFIXES = (*_TORCH, *_NUMPY)


@dataclass(frozen=True, slots=True)
class Dump:
    """One tensor of a file.

    keys: those that lead to it, from the outside in.
    raw, dtype: its storage, C-contiguous, and torch's name of its element type.
    """

    keys: tuple[str, ...]
    raw: Array
    dtype: str


def read(path: Path) -> tuple[list[Dump], list[str]]:
    """The tensors of a file in its order, and the keys of what in it is none.

    Raises UnsupportedError, one line, for a file that is no dump or needs pickle, and for a tensor
    that cannot be an array.
    """
    held = _loaded(path)
    dumps: list[Dump] = []
    others: list[str] = []
    for keys, value in _leaves(held):
        if not _is_array(value):
            others.append(".".join(keys) or type(value).__name__)
            continue
        dumps.append(Dump(keys, *_storage(value)))
    if not dumps:
        raise UnsupportedError("holds no tensor")
    return dumps, others


def _loaded(path: Path) -> Any:
    try:
        if path.suffix.lower() in _NUMPY:
            return _of_numpy(path)
        # By name: the command line knows no torch, and only this command and two formats need it.
        return import_module("torch").load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UnsupportedError(f"cannot be read: {error.strerror or _line(error)}") from None
    except Exception as error:  # noqa: BLE001  # whatever the loaders raise for files that are none
        raise UnsupportedError(_reason(error)) from None


def _of_numpy(path: Path) -> Any:
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return found
    with found:
        return {name: found[name] for name in found.files}


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
    except AnchorError as error:
        raise UnsupportedError(f"holds what cannot be stored: {_line(error)}") from None
    return np.require(raw, requirements=["C"]), dtype
