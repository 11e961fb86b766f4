"""Names of operations as people write them, and whether an operation makes bits of its own."""

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
"""Names that stand for one operation: `1 - y` is rsub in eager code and sub in a graph."""

_MOVING: Final = frozenset(
    (
        *("alias", "as_strided", "clone", "contiguous", "detach", "detach_", "diagonal", "expand"),
        *("flatten", "getitem", "lift", "lift_fresh", "movedim", "narrow", "permute", "select"),
        *("slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unflatten"),
        *("unsafe_split", "unsqueeze", "view", "_reshape_alias"),
    )
)
"""Operations whose result has their input's bits, in another shape or at another place."""

_MAKING: Final = frozenset(
    (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "full", "full_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones"),
        *("ones_like", "resize_", "scalar_tensor", "set_", "zero_", "zeros", "zeros_like"),
    )
)
"""Operations that allocate memory or make a constant."""

_ASKING: Final = frozenset(("_local_scalar_dense", "equal", "is_same_size", "item"))
"""Operations that return a Python number or bool to the program."""

_SILENT: Final = _MOVING | _MAKING | _ASKING
_COPYING: Final = frozenset(("_to_copy", "copy_", "copy", "to", "convert_element_type"))
_PLACING: Final = frozenset(
    ("device", "layout", "memory_format", "non_blocking", "pin_memory", "generator", "copy")
)
"""Arguments that say where a tensor lies or how it is copied, but not what bits it has."""


def base_name(op: str) -> str:
    """Return an operation's short name, without its overload: "add_" for "aten.add_.Tensor".

    An operation of another library than ATen or prims keeps its namespace: "mylib.scan". Different
    names of one operation become equal: "view" for "aten.reshape.default".

    op: the operation's full name.
    """
    namespace, dot, rest = op.partition(".")
    if not dot:
        return _ALIKE.get(op, op)
    name = rest.partition(".")[0]
    if namespace in ("aten", "prims"):
        return _ALIKE.get(name, name)
    return f"{namespace}.{name}"


def computes(op: Op) -> bool:
    """Return whether an operation makes bits of its own, rather than moving those of an input.

    False for views, copies that keep the dtype, constants, allocations, operations that return no
    tensor, and operations that return a number or bool to the program, such as item.
    """
    if op.view or not op.outputs:
        return False
    name = base_name(op.op)
    if name in _COPYING and op.inputs:
        return op.inputs[-1].dtype != op.outputs[0].dtype
    return name not in _SILENT


def moved(op: Op) -> int | None:
    """Return, for an operation that only moves bits, the index of the input that they come from.

    None for an operation without inputs, and for an operation that allocates memory or makes a
    constant. A copy, such as `copy_(here, there)`, has its source as its last input; all others
    have it as the first.
    """
    name = base_name(op.op)
    if not op.inputs or name in _MAKING:
        return None
    return len(op.inputs) - 1 if name in _COPYING else 0


def settings_of(op: Op) -> dict[str, str]:
    """Return {argument's name: value as text} of an operation's arguments that are not tensors.

    Arguments that say where a tensor lies or how it is copied are left out.
    """
    settings = (part.partition("=") for part in _parts(op.args))
    return {name: value for name, _, value in settings if name not in _PLACING}


def is_alike(a: str | None, b: str | None) -> bool:
    """Return whether two values of an argument, as text, are equal: "1" equals "1.0".

    None stands for an argument that was not given, and equals None alone.
    """
    if a is None or b is None or a == b:
        return a == b
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def subtraction(op: Op) -> str:
    """Return a subtraction of a number and a tensor as "1 - x" or "x - 1"; "" for other operations.

    Eager code runs `1 - x` as rsub; a graph runs it as sub with the number as the first argument.
    """
    if base_name(op.op) != "sub" or len(op.inputs) != 1:
        return ""
    settings = settings_of(op)
    first = settings.get("other" if op.op.startswith("aten.rsub.") else "self")
    if first is not None:
        return f"{first} - x"
    return f"x - {settings['other']}" if "other" in settings else ""


def _parts(text: str) -> Iterator[str]:
    """Yield each argument of a text of arguments, which commas outside of brackets separate."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "[(") - (char in "])")
        if char == "," and depth <= 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
