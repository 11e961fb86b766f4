"""Inductor's graphs while they run: their operations, and the values that can be seen.

A kernel computes several operations at once, and most values between them are never in memory.
Values are seen where a tensor enters or leaves a graph, where one of torch's own kernels (a product
of matrices) reads or makes one inside the graph, and where the graph calls anchorlib's operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from anchorlib.capture.tensors import Snapshot, is_plain
from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.code_places import is_observing, place_of
from anchorlib.capture.tracing.compiler_graphs import (
    OUR_OPERATORS,
    CompilerGraph,
    GraphOp,
    NodeOutput,
)
from anchorlib.capture.tracing.graph_reader import GraphKey
from anchorlib.capture.tracing.graph_values import keep_op, miss_op, places_of
from anchorlib.capture.tracing.request import Digests
from anchorlib.capture.tracing.schemas import OpFacts
from anchorlib.capture.tracing.step_state import OpContext, StepState
from anchorlib.capture.tracing.unseen_graphs import compile_id
from anchorlib.capture.tracing.value_digests import digest_of
from anchorlib.capture.tracing.value_recorder import ValueRecorder
from anchorlib.operations import OperandForm, OpForm, TracedOp

__all__ = ["GraphExecution", "InductorGraphs"]


class GraphExecution:
    """One execution of a graph compiled by Inductor.

    makers: for each input of the graph, by name, the number of the operation in the step that made
        its memory; None for memory from before the step.

    written: the inputs that the graph writes in place, by name.

    digest: returns the digest of a tensor's values, or None where none is wanted. digests: those of
        the graph's tensors whose values were seen.
    keeps: the tensors of which copies are wanted. kept: the copies of those that were seen, as they
        were at that moment.
    """

    def __init__(
        self,
        graph: CompilerGraph,
        digest: Callable[[torch.Tensor], bytes | None],
        keeps: Collection[NodeOutput] = (),
    ) -> None:
        self.graph = graph
        self.makers: dict[str, int | None] = {}
        self.written: dict[str, torch.Tensor] = {}
        self.digests: dict[NodeOutput, bytes] = {}
        self._digest = digest
        self.kept: dict[NodeOutput, torch.Tensor] = {}
        self._keeps = keeps
        kernels = [op for op in graph.ops if op.group is not None]
        self._waiting = sorted(kernels, key=lambda op: op.group or 0)

    def see(self, output: NodeOutput, x: torch.Tensor) -> None:
        """Note that the graph's tensor `output` was seen in memory, as `x`: store its digest.

        If the tensor is in `keeps`, a copy of `x` is stored as well. Digests and copies that are
        stored already are not replaced.
        """
        digest = self._digest(x)
        if digest is not None:
            self.digests.setdefault(output, digest)
        if output in self._keeps and output not in self.kept and is_plain(x):
            self.kept[output] = Snapshot(x).tensor

    def writes(self, op: GraphOp) -> list[str]:
        """Return the names of those inputs of the graph that its operation `op` writes in place."""
        names = [op.takes[at].node for at in op.mutates]
        return [name for name in names if name in self.written]

    def note_dispatched(
        self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Note the values of an operation that torch has dispatched inside the graph, and run.

        Does nothing if the graph has no such operation.
        facts: facts from the operation's schema. args, kwargs: its arguments. out: its result.
        """
        if facts.name.startswith(OUR_OPERATORS):
            constants = (one for one in args if isinstance(one, str | int | bool))
            output = self.graph.observed.get((facts.name, *constants))
            if output is not None:
                self.see(output, args[0])
            return
        made = list(tensors_in(out))
        op = self._next(facts.name, [tuple(x.shape) for x in made])
        if op is None:
            return
        for place, x in enumerate(made):
            self.see(NodeOutput(op.name, place), x)
        taken = [
            x
            for name, x in _named(Arguments(facts.arguments, args, kwargs))
            if not any(x is one for one in made) and name not in facts.writes
        ]
        if len(taken) == len(op.inputs):
            for output, form, x in zip(op.takes, op.inputs, taken, strict=True):
                if form[2] == tuple(x.shape):
                    self.see(output, x)

    def _next(self, name: str, shapes: list[tuple[int, ...]]) -> GraphOp | None:
        """Return the next operation of the graph with this name and these output shapes.

        Operations are searched in the order of their kernels. The operation that is returned is not
        returned again. Returns None if none is left that fits.
        """
        base = _base(name)
        for at, op in enumerate(self._waiting):
            if _base(op.op) == base and [form[2] for form in op.outputs] == shapes:
                return self._waiting.pop(at)
        return None


class InductorGraphs:
    """The graphs of Inductor's that were read, and their executions.

    compilations: ids of the compilations from which the graphs come. executions: the executions
        under way, by the id of the thread. digests: of which tensors digests are noted: "both"
        inputs and outputs, "outputs", or "none". value_recorder: records the values of selected
        operations; None where none are selected.
    """

    def __init__(self, digests: Digests, value_recorder: ValueRecorder | None = None) -> None:
        self._value_recorder = value_recorder
        self._graphs: dict[GraphKey, CompilerGraph] = {}
        self.compilations: set[str] = set()
        self.executions: dict[int, GraphExecution] = {}
        self._inputs, self._outputs = digests == "both", digests != "none"

    def read(self, key: GraphKey, graph: CompilerGraph) -> None:
        """Remember a graph that was read while it was compiled.

        key: identifies the graph when it runs.
        """
        self._graphs[key] = graph
        self.compilations.add(compile_id())

    def knows(self, key: GraphKey) -> bool:
        """Return whether the graph with this key was read while it was compiled."""
        return key in self._graphs

    @property
    def execution(self) -> GraphExecution | None:
        """The execution under way on this thread; None where no graph runs."""
        return self.executions.get(get_ident())

    def begin(self, key: GraphKey, given: list[Any], state: StepState) -> GraphExecution:
        """Note that a graph begins to run in this thread with the inputs `given`.

        state: what is known of the open step. Returns the execution, which is under way until
        `leave` is called. Raises KeyError for a graph that was not read.
        """
        graph = self._graphs[key]
        digest = digest_of if self._outputs else _no_digest
        execution = GraphExecution(graph, digest, self._kept(graph, state))
        written = {op.takes[at].node for op in graph.ops for at in op.mutates}
        for name, x in zip(graph.inputs, given, strict=True):
            if isinstance(x, torch.Tensor):
                execution.makers[name] = maker = state.makers.maker(x)
                if (self._inputs or self._value_recorder is not None) and not state.is_blank(maker):
                    execution.see(NodeOutput(name), x)
                if name in written:
                    execution.written[name] = x
        self.executions[get_ident()] = execution
        return execution

    def _kept(self, graph: CompilerGraph, state: StepState) -> Collection[NodeOutput]:
        """Return the tensors of a graph to copy when they are seen: those that may be recorded.

        state: has the names of all modules.
        """
        if self._value_recorder is None:
            return ()
        return places_of(self._value_recorder, graph, state.names.modules.values())

    def leave(self) -> None:
        """End the execution on this thread, since the graph has returned or failed."""
        self.executions.pop(get_ident(), None)

    def note(self, execution: GraphExecution, returned: Any, state: StepState, node: Any) -> None:
        """After a graph has run, append its operations to those of the step, and record values.

        execution: the run of the graph. returned: the graph's result. state: what is known of the
            open step. node: the autograd node that runs; None outside backward.
        """
        made = dict(_pairs(execution.graph, returned))
        for output, x in made.items():
            if output.node not in execution.makers:
                execution.see(output, x)
        frame = _users(sys._getframe(1))  # noqa: SLF001
        place = place_of(frame, state.names.modules, backward=node is not None)
        place = place._replace(graph=frame)
        first = {op.name: len(state.ops) + at for at, op in enumerate(execution.graph.ops)}
        for op in execution.graph.ops:
            context = state.context_of_node(op.node, place, node)
            state.ops.append(self._stated(op, context, execution, first, state.pass_index))
            self._keep(op, context, execution, state.pass_index)
        for output, x in made.items():
            if output.node in first:
                state.makers.made(x, first[output.node])
        for op in execution.graph.ops:
            for name in execution.writes(op):
                state.makers.made(execution.written[name], first[op.name])

    def _keep(
        self, op: GraphOp, context: OpContext, execution: GraphExecution, pass_index: int
    ) -> None:
        if self._value_recorder is not None:
            written = [execution.written[name] for name in execution.writes(op)]
            keep_op(self._value_recorder, op, context, pass_index, execution.kept, written)

    def note_unseen(self, graphs: list[CompilerGraph], state: StepState) -> None:
        """Append the operations of graphs that were not seen to run to those of the step.

        The values that were selected of them become gaps.
        graphs: graphs that were compiled in this step. state: what is known of the step.
        """
        for graph in graphs:
            execution = GraphExecution(graph, _no_digest)
            first = {op.name: len(state.ops) + at for at, op in enumerate(graph.ops)}
            for op in graph.ops:
                context = state.context_of_unseen(op.node)
                state.ops.append(self._stated(op, context, execution, first, 0, "aot"))
                if self._value_recorder is not None:
                    miss_op(self._value_recorder, op, context)

    def _stated(
        self,
        op: GraphOp,
        context: OpContext,
        execution: GraphExecution,
        first: Mapping[str, int],
        pass_index: int,
        source: str = "inductor",
    ) -> TracedOp:
        """Return the operation `op` of a graph as the log of traced operations keeps it.

        context: the operation's stage, module and line. execution: the run of the graph. first: the
            index in the step of each of the graph's operations, by name. source: "inductor", or
            "aot" for a graph that was not seen to run.
        """
        index = first[op.name]
        taken = [execution.digests.get(output) if self._inputs else None for output in op.takes]
        made = self._made(op, execution)
        producers = (
            first.get(output.node, execution.makers.get(output.node)) for output in op.takes
        )
        form = OpForm(
            op.op,
            context.stage,
            context.module,
            context.seq,
            context.node,
            context.where,
            _with_digests(op.inputs, taken),
            _with_digests(op.outputs, made),
            op.args,
            tuple([None if maker is None else index - maker for maker in producers]),
            op.mutates,
            op.facts is not None and op.facts.view,
            source,
            context.origin,
            op.group,
        )
        digests = b"".join([one for one in (*taken, *made) if one is not None])
        return TracedOp(form, pass_index, digests, op.floats)

    def _made(self, op: GraphOp, execution: GraphExecution) -> list[bytes | None]:
        """Return the digest of each tensor that an operation made; None for each without one.

        A tensor that was not seen in memory has no digest, and none has if digests are not wanted.
        """
        for name in execution.writes(op):
            if self._outputs and len(op.outputs) == 1:
                return [digest_of(execution.written[name])]
        return [execution.digests.get(NodeOutput(op.name, at)) for at in range(len(op.outputs))]


def _with_digests(
    forms: tuple[OperandForm, ...], digests: list[bytes | None]
) -> tuple[OperandForm, ...]:
    return tuple(
        (*form[:4], digest is not None) for form, digest in zip(forms, digests, strict=True)
    )


def _pairs(graph: CompilerGraph, returned: Any) -> Iterator[tuple[NodeOutput, torch.Tensor]]:
    """Yield each tensor that a graph has returned, after the tensor of `graph` that it is."""
    every = returned if isinstance(returned, list | tuple) else (returned,)
    for output, x in zip(graph.outputs, every, strict=True):
        if output is not None and isinstance(x, torch.Tensor):
            yield output, x


def _named(arguments: Arguments) -> Iterator[tuple[str, torch.Tensor]]:
    return zip(arguments.names, arguments.tensors, strict=True)


def _base(name: str) -> str:
    """Return an operation's name without namespace and overload: `addmm` of `aten.addmm.out`."""
    return name.split(".")[1] if "." in name else name


def _users(frame: FrameType | None) -> FrameType | None:
    """Return the first of `frame` and its callers that is not in anchorlib's own observing code."""
    while frame is not None and is_observing(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _no_digest(_x: torch.Tensor) -> None:
    return None
