"""Records values of operations in Inductor's graphs, where the values are in memory and are seen.

Selectors say which operations' values are recorded (`values=` of `Session.trace`). Most tensors
between two operations of a kernel are in no memory: each such tensor that was selected becomes a
gap, which says that a value is missing, and why. Seen tensors are copied at once, since a graph
uses its memory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from anchorlib.capture.tracing.compiler_graphs import CompilerGraph, GraphOp, NodeOutput
from anchorlib.capture.tracing.step_state import OpContext
from anchorlib.capture.tracing.value_recorder import ValueRecorder
from anchorlib.capture.tracing.value_selection import Called
from anchorlib.operations import made_kinds, taken_kind

__all__ = ["keep_op", "miss_op", "places_of"]

FUSED: Final = "a kernel of Inductor's computes them, and they were not seen in memory"
UNSEEN: Final = "the backend runs the graph out of sight"


def places_of(
    recorder: ValueRecorder, graph: CompilerGraph, modules: Iterable[str]
) -> set[NodeOutput]:
    """Return the tensors of a graph to copy when they are seen: all that a selector may select.

    modules: the names of all known modules, since it is not known yet which of them runs an
        operation.
    """
    places: set[NodeOutput] = set()
    names = list(modules)
    for op in graph.ops:
        if recorder.wanted.may_take(op.op, op.node.origin, names):
            places.update(op.takes)
            places.update(NodeOutput(op.name, at) for at in range(len(op.outputs)))
    return places


def keep_op(
    recorder: ValueRecorder,
    op: GraphOp,
    context: OpContext,
    pass_index: int,
    kept: Mapping[NodeOutput, torch.Tensor],
    written: Sequence[torch.Tensor],
) -> None:
    """Record the selected inputs and outputs of one operation of a graph that has run.

    A selected tensor that was not seen becomes a gap.

    context: the operation's stage and module. pass_index: the pass in which the graph ran. kept:
        copies of the graph's tensors that were seen in memory. written: the inputs of the graph
        that the operation wrote in place.
    """
    called = Called(op.op, context.origin, context.module)
    recorder.begin(called, pass_index)
    for form, output in zip(op.inputs, op.takes, strict=True):
        _keep(recorder, called, taken_kind(form[0]), kept.get(output))
    for at, kind in enumerate(made_kinds(form[0] for form in op.outputs)):
        in_place = written[0] if written and len(op.outputs) == 1 else None
        made = kept.get(NodeOutput(op.name, at)) if in_place is None else in_place
        _keep(recorder, called, kind, made)


def miss_op(recorder: ValueRecorder, op: GraphOp, context: OpContext) -> None:
    """Note a gap for each selected output of `op`, since its graph was not seen to run.

    context: the operation's stage and module.
    """
    called = Called(op.op, context.origin, context.module)
    for kind in made_kinds(form[0] for form in op.outputs):
        recorder.miss(called, kind, UNSEEN)


def _keep(recorder: ValueRecorder, called: Called, kind: str, x: torch.Tensor | None) -> None:
    if x is None:
        recorder.miss(called, kind, FUSED)
    else:
        recorder.keep(called, kind, x)
