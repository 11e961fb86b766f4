"""The numbers in an optimizer's state of one parameter, each with its kind.

    opt.KEY        a tensor, a Python number, or an array
    opt.KEY:0      an item of a list or tuple, by its index; of a dict, by its key
    opt.KEY:0.1    an item of a list in a list

Python numbers keep all their bits: a float becomes float64, an int becomes int64 (or uint64 where
it does not fit). None, and empty lists or dicts, have no value: they are neither recorded nor
counted as skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from anchorlib.capture.tensors import undisturbed
from anchorlib.names import OPTIMIZER_KIND

__all__ = ["key_of", "state_kinds", "state_values", "tensor_of", "why_no_tensor"]

_DEEPEST = 8  # most levels of nesting in one entry; a list may contain itself
_DTYPES = {bool: torch.bool, float: torch.float64, complex: torch.complex128}  # a bool is an int
_INTEGERS = {torch.int64: range(-(2**63), 2**63), torch.uint64: range(2**64)}


def state_values(state: Mapping[Any, Any]) -> Iterator[tuple[str, object]]:
    """Yield each value in `state` that is not None, after its kind (such as `opt.KEY:0`).

    state: what an optimizer keeps of one parameter, by key.
    """
    for key, entry in state.items():
        for path, value in _values(entry, ()):
            yield f"{OPTIMIZER_KIND}{key}" + (":" + ".".join(path) if path else ""), value


def _values(held: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    inside: Any = None
    if isinstance(held, Mapping):
        inside = held.items()
    elif isinstance(held, list | tuple):
        inside = enumerate(held)
    if inside is None or len(path) >= _DEEPEST:
        if held is not None:
            yield path, held
        return
    for key, value in inside:
        yield from _values(value, (*path, str(key)))


def state_kinds(state: Mapping[Any, Any]) -> list[str]:
    """Return the kinds of the values in `state` that can be recorded.

    state: what an optimizer keeps of one parameter, by key.
    """
    return [kind for kind, value in state_values(state) if tensor_of(value) is not None]


def key_of(kind: str) -> str:
    """Return the kind of the whole entry (`opt.KEY`) to which `kind` (`opt.KEY:0.1`) belongs."""
    return kind.partition(":")[0]


def tensor_of(value: object) -> torch.Tensor | None:
    """Return a tensor with the bits of `value`; None where no tensor can hold `value`."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _of_array(np.array(value))
    dtype = _dtype_of(value)
    if dtype is None:
        return None
    with undisturbed():  # on the CPU, even if the user has set another default device
        return torch.tensor(value, dtype=dtype, device="cpu")


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # text, objects, numbers that torch has no dtype for
        return None


def _dtype_of(number: object) -> torch.dtype | None:
    """Return the dtype that holds a Python number exactly; None where there is no such dtype."""
    for kind, dtype in _DTYPES.items():
        if isinstance(number, kind):
            return dtype
    fitting = [
        dtype for dtype, fits in _INTEGERS.items() if isinstance(number, int) and number in fits
    ]
    return fitting[0] if fitting else None


def why_no_tensor(value: object) -> str:
    """Return a text on why no tensor can hold `value`, for which `tensor_of` returned None."""
    if isinstance(value, int):
        return "optimizer state of type int beyond 64 bits"
    if isinstance(value, Mapping | list | tuple):
        return "optimizer state nested too deep"
    return f"optimizer state of type {type(value).__name__}"
