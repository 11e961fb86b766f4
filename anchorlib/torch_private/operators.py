"""Private names of torch's operators: their class, schema, and the function that a call enters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from anchorlib.torch_private.door import DOORS, AffectedPrograms, MovedError, private

__all__ = ["Overload", "schema_of", "wrap_operator_call"]

Overload: Final = type(torch.ops.aten.add.Tensor)
"""The class of one overload of an operator."""

_SCHEMA: Final = "torch._ops.OpOverload._schema"
_schema: Any = private(
    _SCHEMA,
    "names of an operation's arguments, what it writes, whether it is a view",
    "operations are not traced",
    reach=AffectedPrograms.TRACED,
    probe=lambda: torch.ops.aten.add.Tensor._schema,
    kind=lambda schema: hasattr(schema, "arguments") and hasattr(schema, "returns"),
)


def schema_of(overload: Any) -> Any:
    """Return the schema of an operator's overload. Raises MovedError where this torch lacks it."""
    if _schema is None:
        raise MovedError(DOORS[_SCHEMA].said)
    return overload._schema


_entry: Any = private(
    "torch._ops.OpOverload._op",
    "enters our operators without the dispatcher, which would only call the same kernel",
    "each anchor in compiled code costs some microseconds more",
    reach=AffectedPrograms.COMPILED,
    probe=lambda: torch.ops.aten.add.Tensor._op,
)


def wrap_operator_call(
    operator: Any, entry: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Make each call of our `operator` run `entry(f)` in place of f, the function that it runs now.

    Does nothing where this torch has moved the attribute that holds f.
    """
    if _entry is not None:
        operator._op = entry(operator._op)
