"""The arguments of an operation beside its tensors, as its autograd node saved them for backward.

    GeluBackward0       approximate='tanh'
    StdBackward0        correction=0, dim=(1,), keepdim=True
    MulBackward0        other=0.125             a number that a tensor was multiplied by
    MulBackward0        other=tensor(0.125)     a number in a tensor of the program's
    MulBackward0        other=(32 of mean 0, std 1)     any other factor without a gradient
    MseLossBackward0    target=(32 of mean 0, std 1, first 0.84)    other operand without gradient
    IndexBackward0      indices=(160 from 0 to 47, 1f0c9a2b)        integers: bounds, digest
    MaskedFillBackward0 mask=6 of 16 (1f0c9a)   how many elements are set, and the mask's digest
    MkldnnRnnLayerBackward0    cx_=zeros        whether a recurrent layer's state is all zeros
    SigmoidBackward0    outputs=(1)             which outputs of earlier operations it takes

Two runs in which an operation has different arguments compute different functions; the texts show
the difference.

torch gives each type of node a getter for each saved argument (`_saved_eps`). The getters are taken
from the type's own dict, because a custom `torch.autograd.Function` may have attributes with such
names. A saved tensor is never unpacked: that could run hooks of the user's or change graphs. Only
numbers, small masks and small operands that need no gradient are read, by getters such as
`_raw_saved_other`. Small means that the memory of the tensor has at most 64 KiB.
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

_MOST_TEXT: Final = 256
_MOST_ITEMS: Final = 8
_MOST_BYTES: Final = 1 << 16
_MASKS: Final = ("mask", "condition")
_DIGITS: Final = 8
"""Digits that are shown of the digest of integers: enough to find the record with these bits."""
_OPERANDS: Final = frozenset(
    (
        "attn_mask",
        "batch1",
        "batch2",
        "end",
        "exponent",
        "grid",
        "index",
        "indices",
        "input",
        "offsets",
        "mat1",
        "mat2",
        "other",
        "per_sample_weights",
        "pos_weight",
        "self",
        "source",
        "target",
        "tensor",
        "tensor1",
        "tensor2",
        "vec",
        "weight",
        "x1",
        "x2",
    )
)
"""Names under which nodes save tensors that an operation was given, not tensors that it made."""
_STATES: Final = ("hx_", "cx_")
"""The states with which a recurrent layer begins, by the names under which nodes save them."""
_PLAIN: Final = {torch.float32: np.float32, torch.float64: np.float64}
_KINDS: Final = {
    **_PLAIN,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_NO_MEAN: Final = 1e-3
"""A mean of fewer standard deviations than this is shown as 0: rounding decides its digits."""

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
"""The C types of the dtypes in which single numbers come, from the program or from torch."""


def arguments(node: Any) -> str:
    """Return the arguments that an autograd node saved, as "alpha=1, beta=0.5"; "" if none.

    Of tensors, only small ones on the CPU are described. A text of more than 256 characters is cut.
    """
    getters = saved_getters(node)
    texts = [
        f"{name.removeprefix(SAVED)}={text}"
        for name in getters
        if name.startswith(SAVED) and (text := _text(node, name, getters))
    ]
    texts.sort(key=_describes_elements)  # numbers first, since the end of a long text is cut
    if taken := _outputs(node):
        texts.append(taken)
    return ", ".join(texts)[:_MOST_TEXT]


def _describes_elements(text: str) -> bool:
    """Return whether an argument's text describes a tensor's elements, not a number or switch."""
    return "=(" in text and (" of " in text or " from " in text)


def _outputs(node: Any) -> str:
    """Return which outputs of earlier nodes the autograd node `node` takes, as "outputs=(0, 1)".

    The numbers are in the order of the node's inputs; an input that autograd does not follow has
    none. Return "" if all numbers are 0.
    """
    numbers = [number for source, number in node.next_functions if source is not None]
    return f"outputs=({', '.join(map(str, numbers))})" if any(numbers) else ""


def _text(node: Any, name: str, getters: dict[str, Any]) -> str:
    """Return the saved argument `name` of `node` as text; "" if it has no text, or was freed.

    Arguments without a text are shapes, large tensors, and tensors that the operation made itself.
    An argument is freed by a backward that has run.

    name: the name of the getter, such as "_saved_eps". getters: the getters of the node's type, by
        name.
    """
    short = name.removeprefix(SAVED)
    if short.endswith(_SIZES) or "_sym_" in short:
        return ""
    raw = getters.get(f"{RAW_SAVED}{short}")
    try:
        if raw is not None:
            saved = raw.__get__(node)
            if type(saved) is tuple:  # one index for each axis, None where an axis is whole
                return _several(saved) if short in _OPERANDS else ""
            tensor = saved.data  # the tensor as it was packed: no hook runs
            if short in (*_MASKS, *_STATES):
                return _mask(tensor) if short in _MASKS else _state(tensor)
            if tensor.dim() and not (_multiplies(node) and tensor.dtype in _PLAIN):
                return _operand(tensor) if short in _OPERANDS else ""
            if tensor.dtype == torch.float32 and not _weighs(node):
                return ""  # a number that torch computed itself
            return _factor(tensor) if tensor.dim() else _number(tensor)
        value = getters[name].__get__(node)
    except Exception:  # noqa: BLE001  # torch raises its own errors where backward has freed it
        return ""
    return _shown(_UNTOLD.get(short) if value is None else value, _WORDS.get(short, ()))


def _multiplies(node: Any) -> bool:
    return type(node).__name__.startswith(("Mul", "Div"))


def _weighs(node: Any) -> bool:
    """Return whether `node` may have saved a factor that the program gave.

    Such nodes multiply, divide, or compute a binary cross-entropy with weights. A float32 number
    that any other node saved is one that torch computed itself.
    """
    return _multiplies(node) or type(node).__name__.startswith("BinaryCrossEntropy")


def _number(tensor: Any) -> str:
    """Return the number in a CPU tensor without dimensions as text; "" for any other tensor.

    A number that the program keeps in a tensor is shown as "tensor(0.5)", one that torch wrapped as
    "0.5".
    """
    if type(tensor) is not torch.Tensor or tensor.dim() or tensor.requires_grad or tensor.is_neg():
        return ""
    form = _NUMBERS.get(tensor.dtype)
    address = data_address(tensor) if tensor.device.type == "cpu" else 0
    if form is None or not address:
        return ""
    text = _shown(form.from_address(address).value, ())
    # torch wraps numbers of its own in the widest type of their kind.
    return f"tensor({text})" if tensor.dtype == torch.float32 else text


def _factor(tensor: Any) -> str:
    """Return a text with size, mean and spread of a small factor without gradient; "" for others.

    Three digits of mean and spread are shown, so that two runs whose factors differ by rounding
    have equal texts.
    """
    values = _elements(tensor) if tensor.dtype in _PLAIN else None
    if values is None:
        return ""
    mean, spread, _ = _figures(values)
    return f"({values.size} of mean {mean:.3g}, std {spread:.3g})"


def _operand(tensor: Any) -> str:
    """Return a text on a small operand that autograd does not follow; "" for any other tensor.

    For integers the text has their number, their bounds and the first digits of the digest that a
    record of them has. For float32 and float64 it has the number of elements, their mean, their
    spread, and the first element, which alone changes when the halves of an operand are exchanged.
    For an additive mask it has instead how many elements are minus infinity, and a digest. Elements
    of an expanded axis count once.
    """
    values = None if tensor.dtype == torch.bool else _once(tensor)
    if values is None:
        return ""
    if tensor.dtype not in _PLAIN:
        digest = xxhash.xxh3_128_hexdigest(values.tobytes())[:_DIGITS]
        return f"({values.size} from {values.min()} to {values.max()}, {digest})"
    mean, spread, first = _figures(values)
    if mean == -math.inf:
        return f"{np.isneginf(values).sum()} of {values.size} are -inf ({_digest(values)})"
    return f"({values.size} of mean {mean:.3g}, std {spread:.3g}, first {first:.3g})"


def _state(tensor: Any) -> str:
    """Return "zeros" if the state with which a recurrent layer begins is all zeros, else "given".

    A layer begins with zeros where no state is carried to it. "" is returned for a state whose
    elements `_elements` does not return.
    """
    values = _elements(tensor)
    if values is None:
        return ""
    return "given" if values.any() else "zeros"


def _several(saved: tuple[Any, ...]) -> str:
    """Return the texts of the indices by which axes are indexed; "" where any has no text.

    saved: the saved index of each axis; its data are None where the axis is not indexed.
    A single text stands alone; several are joined in brackets.
    """
    texts = [_operand(one.data) for one in saved if one.data is not None]
    return "" if not all(texts) else texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _mask(mask: Any) -> str:
    """Return a text on a small CPU mask, such as "6 of 16 (1f0c9a)"; "" for any other tensor.

    It says how many elements are set, of how many, and the mask's digest.
    """
    values = _elements(mask) if mask.dtype == torch.bool else None
    if values is None:
        return ""
    return f"{np.count_nonzero(values)} of {values.size} ({_digest(values)})"


def _once(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the elements of a small CPU tensor, each expanded axis (stride 0) cut to length 1.

    Return None where `_elements` returns None.
    """
    values = _elements(tensor)
    if values is None:
        return None
    return values[tuple(slice(None) if stride else slice(1) for stride in values.strides)]


def _elements(tensor: Any) -> np.ndarray[Any, Any] | None:
    """Return the elements of a small CPU tensor that needs no gradient; None for any other tensor.

    None is also returned for an empty tensor, for a dtype that `_KINDS` lacks, and for a view that
    torch negates when it is read, such as the imaginary part of a conjugate: the memory of such a
    view holds the negative of each element.
    """
    kind = _KINDS.get(tensor.dtype)
    if type(tensor) is not torch.Tensor or tensor.requires_grad or kind is None:
        return None
    if tensor.is_neg():
        return None
    if tensor.device.type != "cpu" or not tensor.numel():
        return None
    shape, strides = tuple(tensor.shape), tensor.stride()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    most = max(reach, tensor.numel()) * tensor.itemsize
    address = data_address(tensor) if most <= _MOST_BYTES else 0  # `data_ptr` would copy
    if not address:
        return None
    held: np.ndarray[Any, Any] = np.frombuffer(
        ctypes.string_at(address, reach * tensor.itemsize), kind
    )
    steps = [stride * tensor.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(held, shape, steps, writeable=False)


def _digest(values: np.ndarray[Any, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(values.tobytes())[:6]


def _figures(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return mean, spread (standard deviation) and first element of `values`.

    A mean or a first element that is small beside the spread is returned as 0: rounding decides its
    digits.
    """
    values = values.astype(np.float64)
    with np.errstate(all="ignore"):
        mean, spread = float(values.mean()), float(values.std())
    small, first = _NO_MEAN * spread, float(values.flat[0])
    return 0.0 if abs(mean) < small else mean, spread, 0.0 if abs(first) < small else first


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
    """Return whether a float is shown as an int, so that `x * 2` and `x * 2.0` have equal texts."""
    return math.isfinite(value) and value == int(value) and abs(value) < 1e15
