"""How records of an operation's values are named: one record for each input and output tensor.

fc1/aten.addmm.default @ op.in.mat1    an input, under its argument's name
                       @ op.out        what the operation returned; further tensors are op.out:1, …
                       @ op.out.exp[0] an input that the operation wrote and did not return
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from anchorlib.operations.op import Op, Operand

__all__ = ["kept_as", "kept_name", "made_kinds", "taken_kind"]

_RETURNED: Final = "out"


def kept_name(module: str, op: str) -> str:
    """Return the name of an operation's records: "fc1/aten.addmm.default".

    Without a module it is the operation's full name alone: "aten.addmm.default".

    module: the path of the module whose forward ran the operation; "" for none.
    op: the operation's full name.
    """
    return f"{module}/{op}" if module else op


def taken_kind(argument: str) -> str:
    """Return the kind of the records of an input: "op.in.mat1" for the argument "mat1"."""
    return f"op.in.{argument}"


def made_kinds(arguments: Iterable[str]) -> Iterator[str]:
    """Yield, for each output of an operation, the kind of its records, such as "op.out".

    arguments: the `Operand.argument` of each output: "out" for a tensor that the operation
    returned, else the name of the input that the operation wrote.
    """
    returned = 0
    for argument in arguments:
        if argument != _RETURNED:
            yield f"op.out.{argument}"
        else:
            yield f"op.out:{returned}" if returned else "op.out"
            returned += 1


def kept_as(op: Op) -> Iterator[tuple[str, Operand]]:
    """Yield (kind, tensor) for each input, then each output: the kind of the tensor's records."""
    for one in op.inputs:
        yield taken_kind(one.argument), one
    yield from zip(made_kinds(one.argument for one in op.outputs), op.outputs, strict=True)
