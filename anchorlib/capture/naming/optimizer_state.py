"""The numbers in an optimizer's state of one parameter, each with its kind.

    opt.KEY        a tensor, a number of Python's, or an array
    opt.KEY:0      what is in a list or tuple, by its place; in a dict, by its key
    opt.KEY:0.1    what is in a list in a list

Numbers of Python's have every bit they had: a float is float64, an int is int64 (uint64 where it
needs to be). None is no value, and neither is what is empty: nothing is recorded then, or missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from anchorlib.capture.tensors import undisturbed
from anchorlib.names import OPTIMIZER_KIND

__all__ = ["key_of", "state_kinds", "state_values", "tensor_of", "why_no_tensor"]

_DEEPEST = 8  # of what is nested in one entry; a list may hold itself
_DTYPES = {bool: torch.bool, float: torch.float64, complex: torch.complex128}  # a bool is an int
_INTEGERS = {torch.int64: range(-(2**63), 2**63), torch.uint64: range(2**64)}


def state_values(state: Mapping[Any, Any]) -> Iterator[tuple[str, object]]:
    """Every value in `state` that is there, whatever it is, with its kind."""
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
    """The kinds that are recorded of `state` as it is."""
    return [kind for kind, value in state_values(state) if tensor_of(value) is not None]


def key_of(kind: str) -> str:
    """The kind of a whole entry (`opt.KEY`), of which `kind` (`opt.KEY:0.1`) may be a part."""
    return kind.partition(":")[0]


def tensor_of(value: object) -> torch.Tensor | None:
    """A tensor of the same bits; None of what is no number."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _of_array(np.array(value))
    dtype = _dtype_of(value)
    if dtype is None:
        return None
    with undisturbed():  # and on the CPU, whatever default device the user has
        return torch.tensor(value, dtype=dtype, device="cpu")


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # text, objects, numbers that torch has no dtype for
        return None


def _dtype_of(number: object) -> torch.dtype | None:
    """The dtype that has every bit of a number of Python's; None where there is none."""
    for kind, dtype in _DTYPES.items():
        if isinstance(number, kind):
            return dtype
    fitting = [
        dtype for dtype, fits in _INTEGERS.items() if isinstance(number, int) and number in fits
    ]
    return fitting[0] if fitting else None


def why_no_tensor(value: object) -> str:
    """Why `tensor_of` gives None for `value`."""
    if isinstance(value, int):
        return "optimizer state of type int beyond 64 bits"
    if isinstance(value, Mapping | list | tuple):
        return "optimizer state nested too deep"
    return f"optimizer state of type {type(value).__name__}"
