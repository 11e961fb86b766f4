"""What an operation is called where people read of it, and whether it makes bits at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from anchorlib.operations.op import Op

__all__ = ["base_name", "computes", "is_alike", "moved", "settings_of", "subtraction"]

_ALIKE: Final = {
    "_unsafe_view": "view",
    "reshape": "view",
    "rsub": "sub",
    "_native_batch_norm_legit": "native_batch_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
}
"""Spellings of one operation: `1 - y` runs as rsub in eager code and as sub in a graph."""

_MOVING: Final = frozenset(
    (
        *("alias", "as_strided", "clone", "contiguous", "detach", "detach_", "diagonal", "expand"),
        *("flatten", "getitem", "lift", "lift_fresh", "movedim", "narrow", "permute", "select"),
        *("slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten"),
        *("unsafe_split", "unsqueeze", "view", "_reshape_alias"),
    )
)
"""What gives its input's bits another shape, place or owner."""

_MAKING: Final = frozenset(
    (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "full", "full_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones"),
        *("ones_like", "resize_", "scalar_tensor", "set_", "zero_", "zeros", "zeros_like"),
    )
)
"""What makes room or a constant."""

_ASKING: Final = frozenset(("_local_scalar_dense", "equal", "is_same_size", "item"))
"""What answers the program with a number."""

_SILENT: Final = _MOVING | _MAKING | _ASKING
_COPYING: Final = frozenset(("_to_copy", "copy_", "copy", "to", "convert_element_type"))
_PLACING: Final = frozenset(
    ("device", "layout", "memory_format", "non_blocking", "pin_memory", "generator", "copy")
)
"""Arguments that say where a tensor lies, or how a copy is made."""


def base_name(op: str) -> str:
    """An operation without overload: "tanh_backward" of "aten.tanh_backward.default".

    What is not ATen's keeps its namespace: "mylib.scan".
    """
    namespace, dot, rest = op.partition(".")
    if not dot:
        return _ALIKE.get(op, op)
    name = rest.partition(".")[0]
    if namespace in ("aten", "prims"):
        return _ALIKE.get(name, name)
    return f"{namespace}.{name}"


def computes(op: Op) -> bool:
    """Whether an operation makes bits of its own: views, copies and room for results do not."""
    if op.view or not op.outputs:
        return False
    name = base_name(op.op)
    if name in _COPYING and op.inputs:
        return op.inputs[-1].dtype != op.outputs[0].dtype
    return name not in _SILENT


def moved(op: Op) -> int | None:
    """Which input an operation that computes nothing takes its bits from; None of a constant.

    What is copied into a tensor comes after that tensor: `copy_(here, there)`.
    """
    name = base_name(op.op)
    if not op.inputs or name in _MAKING:
        return None
    return len(op.inputs) - 1 if name in _COPYING else 0


def settings_of(op: Op) -> dict[str, str]:
    """What an operation was told beside its tensors, by name; not where its tensors lie."""
    told = (part.partition("=") for part in _parts(op.args))
    return {name: value for name, _, value in told if name not in _PLACING}


def is_alike(a: str | None, b: str | None) -> bool:
    """Whether two settings are one: 1 and 1.0, of which either may stand for a number, are."""
    if a is None or b is None or a == b:
        return a == b
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def subtraction(op: Op) -> str:
    """A number less a tensor, or the reverse: "1 - x" or "x - 1"; "" of any other operation.

    Eager code runs `1 - x` as rsub, a graph as sub, whose first argument is the number.
    """
    if base_name(op.op) != "sub" or len(op.inputs) != 1:
        return ""
    told = settings_of(op)
    first = told.get("other" if op.op.startswith("aten.rsub.") else "self")
    if first is not None:
        return f"{first} - x"
    return f"x - {told['other']}" if "other" in told else ""


def _parts(text: str) -> Iterator[str]:
    """The arguments in a text, which commas divide, but for those inside brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
