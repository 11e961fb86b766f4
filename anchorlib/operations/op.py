"""One operation as it ran, and the tensors that it took and made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Op", "Operand"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operation took or made.

    argument: the operation's name for it ("self", "mat2", "tensors[3]"), "out" for what it
        returned.
    digest: xxh3-128 of its values as 32 hex digits, over the bytes that a record of it would keep;
        None where no digest was asked for, or where it has no values.
    """

    argument: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One ATen operation of a traced step.

    index: its place in the step, from 0.
    op: its name, as "aten.addmm.default".
    stage: "forward", "backward", "accumulate" (gradients that are summed), "optimizer", or
        "recompute" (a forward that activation checkpointing repeats inside backward).
    module: the path of the module whose forward ran it; of a backward operation that of its
        forward operation; of an accumulation, or of an optimizer's operation on one parameter,
        that of the module which holds the parameter. Empty where none is known.
    seq: what an operation and its backward have in common, numbered from 0 within the step.
    node: the autograd node that ran it; empty outside backward.
    where: "PATH:LINE" of the first line outside torch that led to it; a backward operation has
        that of its forward operation.
    inputs, outputs: its tensors. What it wrote into an input and did not return is an output too,
        under that argument's name.
    args: its other arguments, as text.
    producers: for each input the index of the operation that made or last wrote its memory; None
        where that was before this step, or is not known.
    mutates: the places among the inputs that it wrote.
    view: whether what it made shares memory with an input.
    origin: of compiled code: the operation before decomposition, where it is another. group: the
        number of its kernel in its graph, which fused operations share. Empty and None elsewhere.
    source: where it was read: "eager", as torch ran it; "graph", the same of a compiler's graph
        that was run operation by operation; "inductor", of the graph that Inductor made kernels
        of, which ran; "aot", of a graph that a backend runs out of sight, in the step in which it
        was compiled, after all that ran.
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
        """The operation as JSON can hold it."""
        return asdict(self)
