"""Inductor's graphs while they run: each of their operations, and what is seen of its values.

Kernels compute several operations at once, and most of what lies between is never in memory. Seen
are what a graph is given and returns, what torch's own kernels take and make in it (a product of
matrices), and what anchors are shown.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.digests import digest_of
from anchorlib.capture.tracing.doors import GraphKey
from anchorlib.capture.tracing.graphs import OUR_OPERATORS, Graph, GraphOp, Slot
from anchorlib.capture.tracing.places import is_observing, place_of
from anchorlib.capture.tracing.request import Digests
from anchorlib.capture.tracing.schemas import OpFacts
from anchorlib.capture.tracing.sights import Sight, Sights
from anchorlib.capture.tracing.unseen import compile_id
from anchorlib.operations import OperandForm, OpForm, TracedOp

__all__ = ["Kernels", "Running"]


class Running:
    """One execution of a graph.

    makers: of what it was given, which operation made it. written: of that, what it writes.
    digests: of its tensors.
    """

    def __init__(self, graph: Graph, digest: Callable[[torch.Tensor], bytes | None]) -> None:
        self.graph = graph
        self.makers: dict[str, int | None] = {}
        self.written: dict[str, torch.Tensor] = {}
        self.digests: dict[Slot, bytes] = {}
        self._digest = digest
        kernels = [op for op in graph.ops if op.group is not None]
        self._waiting = sorted(kernels, key=lambda op: op.group or 0)

    def see(self, slot: Slot, x: torch.Tensor) -> None:
        """These are the values of a tensor of the graph."""
        found = self._digest(x)
        if found is not None:
            self.digests.setdefault(slot, found)

    def writes(self, op: GraphOp) -> list[str]:
        """Which of the tensors that the graph was given an operation writes."""
        names = [op.takes[at].node for at in op.mutates]
        return [name for name in names if name in self.written]

    def saw(self, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Torch dispatched an operation inside the graph."""
        if facts.name.startswith(OUR_OPERATORS):
            constants = (one for one in args if isinstance(one, str | int | bool))
            slot = self.graph.sightings.get((facts.name, *constants))
            if slot is not None:
                self.see(slot, args[0])
            return
        made = list(tensors_in(out))
        op = self._next(facts.name, [tuple(x.shape) for x in made])
        if op is None:
            return
        for place, x in enumerate(made):
            self.see(Slot(op.name, place), x)
        taken = [
            x
            for name, x in _named(Arguments(facts.arguments, args, kwargs))
            if not any(x is one for one in made) and name not in facts.writes
        ]
        if len(taken) == len(op.inputs):
            for slot, form, x in zip(op.takes, op.inputs, taken, strict=True):
                if form[2] == tuple(x.shape):
                    self.see(slot, x)

    def _next(self, name: str, shapes: list[tuple[int, ...]]) -> GraphOp | None:
        """The first operation of the graph, in the order of its kernels, that this can be."""
        base = _base(name)
        for at, op in enumerate(self._waiting):
            if _base(op.op) == base and [form[2] for form in op.outputs] == shapes:
                return self._waiting.pop(at)
        return None


class Kernels:
    """The graphs of Inductor's that were read.

    compilations: those that they come from.
    """

    def __init__(self, digests: Digests) -> None:
        self._graphs: dict[GraphKey, Graph] = {}
        self.compilations: set[str] = set()
        self._running: dict[int, Running] = {}
        self._inputs, self._outputs = digests == "both", digests != "none"

    def read(self, key: GraphKey, graph: Graph) -> None:
        """A graph was compiled."""
        self._graphs[key] = graph
        self.compilations.add(compile_id())

    def knows(self, key: GraphKey) -> bool:
        """Whether the graph that is about to run was read."""
        return key in self._graphs

    @property
    def running(self) -> Running | None:
        """The graph that runs on this thread."""
        return self._running.get(threading.get_ident())

    def begin(self, key: GraphKey, given: list[Any], sights: Sights) -> Running:
        """A graph begins to run with what it is given."""
        graph = self._graphs[key]
        running = Running(graph, digest_of if self._outputs else _no_digest)
        written = {op.takes[at].node for op in graph.ops for at in op.mutates}
        for name, x in zip(graph.inputs, given, strict=True):
            if isinstance(x, torch.Tensor):
                running.makers[name] = maker = sights.makers.maker(x)
                if self._inputs and not sights.is_blank(maker):
                    running.see(Slot(name), x)
                if name in written:
                    running.written[name] = x
        self._running[threading.get_ident()] = running
        return running

    def leave(self) -> None:
        """It has ended, or failed."""
        self._running.pop(threading.get_ident(), None)

    def note(self, running: Running, returned: Any, sights: Sights, node: Any) -> None:
        """It has returned: its operations are the next of the step.

        node: the autograd node that runs; None outside backward.
        """
        made = dict(_pairs(running.graph, returned))
        for slot, x in made.items():
            if slot.node not in running.makers:
                running.see(slot, x)
        frame = _users(sys._getframe(1))  # noqa: SLF001
        place = place_of(frame, sights.names.modules, backward=node is not None)
        place = place._replace(graph=frame)
        first = {op.name: len(sights.ops) + at for at, op in enumerate(running.graph.ops)}
        for op in running.graph.ops:
            sight = sights.see_node(op.node, place, node)
            sights.ops.append(self._stated(op, sight, running, first, sights.pass_index))
        for slot, x in made.items():
            if slot.node in first:
                sights.makers.made(x, first[slot.node])
        for op in running.graph.ops:
            for name in running.writes(op):
                sights.makers.made(running.written[name], first[op.name])

    def note_unseen(self, graphs: list[Graph], sights: Sights) -> None:
        """Some graphs were compiled in this step, and nobody has seen them run."""
        for graph in graphs:
            running = Running(graph, _no_digest)
            first = {op.name: len(sights.ops) + at for at, op in enumerate(graph.ops)}
            for op in graph.ops:
                sight = sights.see_unseen(op.node)
                sights.ops.append(self._stated(op, sight, running, first, 0, "aot"))

    def _stated(
        self,
        op: GraphOp,
        sight: Sight,
        running: Running,
        first: Mapping[str, int],
        pass_index: int,
        source: str = "inductor",
    ) -> TracedOp:
        """An operation of a graph. first: the places in the step of the graph's operations."""
        index = first[op.name]
        taken = [running.digests.get(slot) if self._inputs else None for slot in op.takes]
        made = self._made(op, running)
        producers = (first.get(slot.node, running.makers.get(slot.node)) for slot in op.takes)
        form = OpForm(
            op.op,
            sight.stage,
            sight.module,
            sight.seq,
            sight.node,
            sight.where,
            _with_digests(op.inputs, taken),
            _with_digests(op.outputs, made),
            op.args,
            tuple([None if maker is None else index - maker for maker in producers]),
            op.mutates,
            op.facts is not None and op.facts.view,
            source,
            sight.origin,
            op.group,
        )
        told = b"".join([one for one in (*taken, *made) if one is not None])
        return TracedOp(form, pass_index, told, op.floats)

    def _made(self, op: GraphOp, running: Running) -> list[bytes | None]:
        """The digests of what an operation made."""
        for name in running.writes(op):
            if self._outputs and len(op.outputs) == 1:
                return [digest_of(running.written[name])]
        return [running.digests.get(Slot(op.name, at)) for at in range(len(op.outputs))]


def _with_digests(
    forms: tuple[OperandForm, ...], digests: list[bytes | None]
) -> tuple[OperandForm, ...]:
    return tuple(
        (*form[:4], digest is not None) for form, digest in zip(forms, digests, strict=True)
    )


def _pairs(graph: Graph, returned: Any) -> Iterator[tuple[Slot, torch.Tensor]]:
    """What a graph has returned, by where it was made in it."""
    every = returned if isinstance(returned, list | tuple) else (returned,)
    for slot, x in zip(graph.outputs, every, strict=True):
        if slot is not None and isinstance(x, torch.Tensor):
            yield slot, x


def _named(arguments: Arguments) -> Iterator[tuple[str, torch.Tensor]]:
    return zip(arguments.names, arguments.tensors, strict=True)


def _base(name: str) -> str:
    """`addmm` of `aten.addmm.out`."""
    return name.split(".")[1] if "." in name else name


def _users(frame: FrameType | None) -> FrameType | None:
    """The first frame above that is not of anchorlib's own observing."""
    while frame is not None and is_observing(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _no_digest(_x: torch.Tensor) -> None:
    return None
