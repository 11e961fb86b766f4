"""The arguments of an operation beside its tensors, as its autograd node saved them for backward.

    GeluBackward0       approximate='tanh'
    StdBackward0        correction=0, dim=(1,), keepdim=True
    MulBackward0        other=0.125             a number that a tensor was multiplied by
    MulBackward0        other=tensor(0.125)     a number in a tensor of the program's
    MulBackward0        other=(32 of mean 0, std 1)     any other factor without a gradient
    HuberLossBackward0  target=(32 of mean 0.2, std 1)  a loss's target, its weights
    IndexBackward0      indices=(160 from 0 to 47, 1f0c9a2b)    where a tensor was read or added to
    MaskedFillBackward0 mask=6 of 16 (1f0c9a)   how many elements are set, and the mask's digest
    SigmoidBackward0    outputs=(1)             which outputs of the operations before it it takes

torch gives each type of node a getter for each saved argument (`_saved_eps`). The getters are taken
from the type's own dict, because a custom `torch.autograd.Function` may have attributes with such
names. A saved tensor is never unpacked: that could run hooks of the user's or change graphs. Only
numbers, and small masks, indices, factors and targets that need no gradient, are read, by
`_raw_saved_other`.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np
import torch
import xxhash

from anchorlib.torch_private import RAW_SAVED, SAVED, data_address, saved_getters

__all__ = ["arguments"]

_MOST_TEXT: Final = 200
_MOST_ITEMS: Final = 8
_MOST_MASK: Final = 1 << 16
_MOST_FACTOR: Final = 1 << 16  # bytes
_MASKS: Final = ("mask", "condition")
_INDICES: Final = ("index", "indices", "offsets", "target")
_DIGITS: Final = 8
"""Of an index's digest: enough to find the record that has the same bits."""
_PLAIN: Final = {torch.float32: np.float32, torch.float64: np.float64}
_WHOLE: Final = {torch.int64: np.int64, torch.int32: np.int32}
_NO_MEAN: Final = 1e-3
"""A mean of less than so many standard deviations is told as 0: rounding decides its digits."""

_SIZES: Final = ("_sizes", "_strides", "_numel", "_options", "_opt", "HxW", "N", "C")
"""Ends of names of arguments that are left out: they repeat shapes, which are recorded anyway."""

_UNTOLD: Final = {"correction": 1}
"""Values that torch uses for an argument that is None."""

_WORDS: Final = {"reduction": ("none", "mean", "sum")}
"""Arguments that torch saves as a number: the words that the numbers stand for."""

_NUMBERS: Final[dict[torch.dtype, Any]] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int64: ctypes.c_int64,
    torch.bool: ctypes.c_bool,
}
"""The C types of the dtypes that single numbers have, those among them that torch wraps itself."""


def arguments(node: Any) -> str:
    """The scalar arguments of one node, by name, as "alpha=1, beta=0.5"; "" if it saved none."""
    getters = saved_getters(node)
    told = [
        f"{name.removeprefix(SAVED)}={text}"
        for name in getters
        if name.startswith(SAVED) and (text := _text(node, name, getters))
    ]
    if taken := _outputs(node):
        told.append(taken)
    return ", ".join(told)[:_MOST_TEXT]


def _outputs(node: Any) -> str:
    """Which outputs of the nodes before it a node takes; "" where it takes the first of each."""
    numbers = [number for source, number in node.next_functions if source is not None]
    return f"outputs=({', '.join(map(str, numbers))})" if any(numbers) else ""


def _text(node: Any, name: str, getters: dict[str, Any]) -> str:
    """One saved argument as text; "" where it is no scalar argument, or backward has freed it."""
    short = name.removeprefix(SAVED)
    if short.endswith(_SIZES) or "_sym_" in short:
        return ""
    raw = getters.get(f"{RAW_SAVED}{short}")
    try:
        if raw is not None:
            saved = raw.__get__(node)
            if type(saved) is tuple:  # one index for each axis, None where an axis is whole
                return _indices(saved) if short in _INDICES else ""
            tensor = saved.data  # the tensor as it was packed: no hook runs
            if short in _MASKS:
                return _mask(tensor)
            if short in _INDICES and tensor.dtype in _WHOLE:
                return _index(tensor)
            if tensor.dtype in _PLAIN and not _weighs(node):
                return _number(tensor) if tensor.dtype != torch.float32 else ""  # torch's own
            return _factor(tensor) if tensor.dim() else _number(tensor)
        value = getters[name].__get__(node)
    except Exception:  # noqa: BLE001  # torch raises its own errors where backward has freed it
        return ""
    return _shown(_UNTOLD.get(short) if value is None else value, _WORDS.get(short, ()))


def _weighs(node: Any) -> bool:
    """Whether a node multiplies by what it saved, or compares with it: a factor, a target."""
    name = type(node).__name__
    return name.startswith(("Mul", "Div", "BinaryCrossEntropy")) or "Loss" in name


def _number(tensor: Any) -> str:
    """A number that torch or the program wrapped in a tensor; "" for any other tensor."""
    if type(tensor) is not torch.Tensor or tensor.dim() or tensor.requires_grad:
        return ""
    form = _NUMBERS.get(tensor.dtype)
    address = data_address(tensor) if tensor.device.type == "cpu" else 0
    if form is None or not address:
        return ""
    text = _shown(form.from_address(address).value, ())
    # torch wraps numbers of its own in the widest type of their kind.
    return f"tensor({text})" if tensor.dtype == torch.float32 else text


def _factor(tensor: Any) -> str:
    """Size, mean and spread of a small factor that autograd does not follow; "" for any other.

    Three digits of each: a rounding changes none of them, and the factor's own bits do not tell.
    """
    raw = _contents(tensor) if tensor.dtype in _PLAIN else b""
    if not raw:
        return ""
    values = np.frombuffer(raw, _PLAIN[tensor.dtype]).astype(np.float64)
    with np.errstate(all="ignore"):
        mean, spread = float(values.mean()), float(values.std())
    mean = 0.0 if abs(mean) < _NO_MEAN * spread else mean
    return f"({len(values)} of mean {mean:.3g}, std {spread:.3g})"


def _indices(saved: tuple[Any, ...]) -> str:
    """The indices of all axes that are indexed; "" where one of them cannot be told."""
    told = [_index(one.data) for one in saved if one.data is not None]
    return "" if not all(told) else told[0] if len(told) == 1 else f"({', '.join(told)})"


def _index(index: Any) -> str:
    """How many elements an index has, from which to which, and its digest; "" if not cheap.

    The digest begins as that of a record of the same elements does.
    """
    kind = _WHOLE.get(index.dtype)
    raw = b"" if kind is None else _contents(index)
    if not raw:
        return ""
    values = np.frombuffer(raw, kind)
    digest = xxhash.xxh3_128_hexdigest(raw)[:_DIGITS]
    return f"({len(values)} from {values.min()} to {values.max()}, {digest})"


def _contents(tensor: Any) -> bytes:
    """The elements of a small tensor that needs no gradient, in order; empty where not cheap.

    Axes along which a tensor was expanded are left out.
    """
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.device.type != "cpu":
        return b""
    size, address = tensor.itemsize, data_address(tensor)  # `data_ptr` would copy a lazy clone
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if length != 1 and stride and stride * tensor.itemsize != size:
            return b""
        size *= length if stride else 1
    if not address or not tensor.numel() or size > _MOST_FACTOR:
        return b""
    return ctypes.string_at(address, size)


def _mask(mask: Any) -> str:
    """How many elements of a mask are set, and its digest; "" where that is not cheap."""
    if type(mask) is not torch.Tensor or mask.dtype != torch.bool or mask.device.type != "cpu":
        return ""
    address = data_address(mask)  # `data_ptr` would copy a lazy clone
    if not address or not mask.is_contiguous() or mask.numel() > _MOST_MASK:
        return ""
    raw = ctypes.string_at(address, mask.numel())
    return f"{raw.count(1)} of {len(raw)} ({xxhash.xxh3_64_hexdigest(raw)[:6]})"


def _shown(value: Any, words: tuple[str, ...]) -> str:
    if type(value) is int:
        value = value - (1 << 64) if value >> 63 == 1 else value  # saved as uint64
        return words[value] if 0 <= value < len(words) else str(value)
    if type(value) in (bool, str):
        return repr(value)
    if type(value) is float:
        return str(int(value)) if _whole(value) else repr(value)
    if type(value) in (tuple, list) and len(value) <= _MOST_ITEMS:
        inner = [_shown(one, words) for one in value]
        return f"({', '.join(inner)})" if all(inner) else ""
    return ""


def _whole(value: float) -> bool:
    """Whether a float is shown as an int, so that `x * 2` and `x * 2.0` have the same text."""
    return math.isfinite(value) and value == int(value) and abs(value) < 1e15
