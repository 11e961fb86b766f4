"""An operation as it ran, and the tensors that were its inputs and outputs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

__all__ = ["Op", "OpKey", "Operand", "op_key"]

OpKey: TypeAlias = tuple[int, int, int]
"""Identifies an operation in its run: its rank, step and index."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or output tensor of an operation.

    argument: the operation's name for the tensor ("self", "mat2", "tensors[3]"); "out" for a
        tensor that it returned.
    digest: xxh3-128 of the tensor's values as 32 hex digits, over the bytes that a record of the
        tensor would keep; None where no digest was asked for, or where the tensor has no values.
    """

    argument: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One ATen operation of a traced step.

    index: the operation's position in the step, from 0.
    op: the operation's full name, such as "aten.addmm.default".
    stage: "forward", "backward", "accumulate" (gradients that are summed), "optimizer", or
        "recompute" (a forward that activation checkpointing repeats inside backward).
    module: the path of the module whose forward ran the operation. A backward operation has the
        module of its forward operation; an accumulation, or an optimizer's operation on one
        parameter, has the module that holds the parameter. Empty where no module is known.
    seq: a number that an operation and the operations of its backward share, from 0 within the
        step; None for an operation without a backward.
    node: the autograd node that ran the operation; empty outside backward.
    where: "PATH:LINE" of the first line outside torch that led to the operation. A backward
        operation has the line of its forward operation.
    inputs, outputs: the operation's tensors. An input that the operation wrote and did not return
        is an output too, under the argument's name.
    args: all other arguments, as text: "alpha=2, beta=1".
    producers: for each input the index of the operation that made or last wrote the input's memory;
        None where that happened before this step, or is not known.
    mutates: the positions, among the inputs, of those that the operation wrote.
    view: whether an output shares memory with an input.
    origin: in compiled code, the name of the operation that was decomposed into this one; else "".
    group: in compiled code, the number of the kernel in its graph, which fused operations share;
        else None.
    source: where the operation was read. "eager": as torch ran it. "graph": from a compiler's graph
        that was run operation by operation. "inductor": from the graph of which Inductor made the
        kernels that ran. "aot": from a graph that was compiled but not seen to run; the operations
        of such a graph stand in the step in which it was compiled, after all that ran.
    step, pass_index, rank: where the operation ran.
    attempt: the number of the rank's recording, as a run that goes on has several.
    """

    index: int
    op: str
    stage: str
    module: str
    seq: int | None
    node: str
    where: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    args: str
    producers: tuple[int | None, ...]
    mutates: tuple[int, ...]
    view: bool
    origin: str = ""
    group: int | None = None
    source: str = "eager"
    step: int = 0
    pass_index: int = 0
    rank: int = 0
    attempt: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the operation as a dict that JSON can hold."""
        return asdict(self)


def op_key(op: Op) -> OpKey:
    """Return the rank, step and index of an operation, which identify it in its run."""
    return op.rank, op.step, op.index
