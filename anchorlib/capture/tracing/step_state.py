"""StepState: what is known of a traced step so far; tells the stage and module of each operation.

Where stage and module of an operation come from:

forward    the operation has the sequence number of the autograd node that was just made
backward   the autograd node that runs has the number of its forward operation, which gives module
           and line
compiled   the graph's node tells stage, module and line; one autograd node stands for the whole
           graph
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import fx

from anchorlib.capture.tracing.code_places import CodePlace, line_above
from anchorlib.capture.tracing.compiled_modules import CompiledModuleNames
from anchorlib.capture.tracing.forward_sites import ForwardSites
from anchorlib.capture.tracing.graph_nodes import NodeFacts, facts_of_node
from anchorlib.capture.tracing.module_names import ModuleNames
from anchorlib.capture.tracing.running_nodes import RunningNodes
from anchorlib.capture.tracing.schemas import OpFacts
from anchorlib.capture.tracing.storage_makers import StorageMakers
from anchorlib.capture.tracing.value_digests import Digester
from anchorlib.operations import TracedOp
from anchorlib.torch_private import NodeContext, next_sequence, sequence_number

__all__ = ["OpContext", "StepState"]

_NO_SEQUENCE: Final = 1 << 63  # AccumulateGrad nodes have numbers from here on
Keys: TypeAlias = list[int | None]
_ALL: Final = repeat(True)
_COPY: Final = "aten.clone.default"
_SUMS: Final = {"aten.add.Tensor", "aten.add_.Tensor"}


class OpContext(NamedTuple):
    """What was found out about an operation when it was dispatched.

    stage: "forward", "backward", "accumulate" (gradients are summed), "optimizer" or "recompute".
    module: the name of the module that the operation belongs to; "" if unknown. seq: a number that
    a forward operation and its backward operations share; None where autograd has no node for the
    operation. node: the name of the autograd node that ran it; "" outside backward. where: file and
    line of user code. origin: in compiled code, the operation that the compiler replaced by this
    one; "" elsewhere.
    """

    stage: str
    module: str
    seq: int | None
    node: str
    where: str
    origin: str = ""


# A named tuple's own constructor is a function in Python, which takes several times as long.
_context: Final[Callable[[tuple[str, str, int | None, str, str, str]], OpContext]] = partial(
    tuple.__new__, OpContext
)


@dataclass(slots=True)
class StepState:
    """The operations and tensors seen so far in one traced step.

    names: names of modules and parameters. digester: computes digests of values. ops: the
    operations traced so far. makers: which operation wrote which memory. pass_index: the pass that
    the next operation belongs to. graphs: the compilers' graphs that ran operation by operation, in
    this step or before.
    """

    names: ModuleNames
    digester: Digester
    ops: list[TracedOp] = field(default_factory=list)
    makers: StorageMakers = field(default_factory=StorageMakers)
    pass_index: int = 0
    graphs: WeakSet[fx.Graph] = field(default_factory=WeakSet)
    _forwards: ForwardSites = field(default_factory=ForwardSites)
    _numbers: dict[object, int] = field(default_factory=dict)
    _blank: set[int | None] = field(default_factory=set)
    _followed: set[int] = field(default_factory=set)  # autograd nodes that stand for whole graphs
    # The number of a node that torch made before it copied what an operation is about to overwrite
    # (`x.mul_(y)`): the copy has the next number, and the operation has none of its own.
    _saved: int | None = None
    _ended: bool = False  # whether a backward of this pass was seen
    _compiled_modules: CompiledModuleNames = field(init=False)
    _running_nodes: RunningNodes = field(default_factory=RunningNodes)
    _nodes: WeakKeyDictionary[fx.Node, NodeFacts] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        self._compiled_modules = CompiledModuleNames(self.names.name_of)

    def next_step(self) -> list[TracedOp]:
        """Return the operations of the step that has ended, and forget all else about that step.

        Only the places where its forwards ran are kept for one more step, in which the backward of
        these forwards may run.
        """
        ops, self.ops = self.ops, []
        self.makers.forget()
        self.digester.forget()
        self._numbers.clear()
        self._blank.clear()
        self._followed.clear()
        self._saved = None
        self._compiled_modules.next_step()
        self._running_nodes.forget()
        self._forwards.next_step(next_sequence() - 1)
        self.pass_index, self._ended = 0, False
        self.names.find_memory()
        return ops

    def add(self, op: TracedOp, facts: OpFacts) -> None:
        """Append an operation that has run to the operations of the step."""
        if facts.blank:
            self._blank.add(len(self.ops))
        self.ops.append(op)

    def is_blank(self, maker: int | None) -> bool:
        """Return whether operation number `maker` only allocated memory, as `empty` does."""
        return maker in self._blank

    def are_written(self, makers: list[int | None]) -> Iterable[bool]:
        """Return, for each of the operations `makers`, whether it wrote the memory that it made.

        makers: numbers of operations; None for memory from before the step, which is written. Where
        all are written, the answer yields True without end, however many `makers` there are.
        """
        blank = self._blank
        return _ALL if blank.isdisjoint(makers) else [maker not in blank for maker in makers]

    def context_of(
        self,
        dispatched: OpFacts,
        place: CodePlace,
        node: Any,
        tensors: list[torch.Tensor],
        keys: Keys,
    ) -> OpContext:
        """Return stage, module and line of an operation that torch has dispatched.

        dispatched: facts from its schema. place: where its Python frames say that it comes from.
        node: the autograd node that runs; None outside backward. tensors: its inputs. keys: numbers
        that identify the inputs' storages.
        Also notes where a forward ran, and a pass that begins with this operation.
        """
        facts = None if place.graph is None else self._facts(place.graph)
        if facts is not None and facts.seq is not None and not place.optimizes:
            return self._of_graph(facts, place, node)
        if facts is None:
            return self._of_torch(dispatched, place, node, tensors, keys)
        module = self._compiled_modules.module(facts.module, -1, place.graph) or place.module
        place = place._replace(where=facts.where or place.where, module=module)
        return self._of_torch(dispatched, place, node, tensors, keys)._replace(origin=facts.origin)

    def context_of_node(self, facts: NodeFacts, place: CodePlace, node: Any) -> OpContext:
        """Return stage, module and line of a graph's operation that torch did not dispatch.

        facts: from the metadata of the operation's node. place: where the running graph was called.
        node: the autograd node that runs; None outside backward.
        Also notes where a forward ran, and a pass that begins with this operation.
        """
        if place.optimizes:
            return OpContext("optimizer", "", None, "", facts.where or place.where, facts.origin)
        return self._of_graph(facts, place, node)

    def context_of_unseen(self, facts: NodeFacts) -> OpContext:
        """Return stage, module and line of an operation in a graph that was not seen to run."""
        module = self.names.at(facts.module.inside)
        stage = "backward" if facts.is_backward else "forward"
        return OpContext(
            "accumulate" if facts.is_summing else stage, module, None, "", facts.where, facts.origin
        )

    def _facts(self, frame: FrameType) -> NodeFacts | None:
        node = self._running_nodes.node(frame)
        if node is None:
            return None
        facts = self._nodes.get(node)
        if facts is None:
            facts = self._nodes[node] = facts_of_node(node)
            self.graphs.add(node.graph)
        return facts

    def _of_graph(self, facts: NodeFacts, place: CodePlace, node: Any) -> OpContext:
        """Return stage, module and line of an operation in a running graph of AOTAutograd.

        node: the autograd node that runs the graph's backward; None while the graph's forward runs.
        """
        where = facts.where or place.where
        if node is not None and not place.repeats:
            self._ended = True
            execution, called = sequence_number(node), node.name()
            stage = "recompute" if facts.is_forward else "backward"
            module = self._compiled_modules.module(facts.module, execution, None)
        else:
            execution, called = next_sequence() - 1, ""
            stage = "forward" if node is None else "recompute"
            module = self._compiled_modules.module(facts.module, execution, place.graph)
            if self._is_followed(execution, module, where) and node is None:
                self._begin_pass()
            if facts.is_backward:
                stage = "backward"
        if facts.is_summing:
            stage = "accumulate"
        known = facts.seq is not None and execution in self._followed
        seq = self._number((execution, facts.seq)) if known else None
        return OpContext(stage, module, seq, called, where, facts.origin)

    def _is_followed(self, execution: int, module: str, where: str) -> bool:
        """Return whether the graph whose forward runs has made an autograd node for a backward.

        execution: the number of the autograd node that was made last. If the node is new, `module`
        and `where` are noted as the module and line of its forward.
        """
        if self._forwards.note_new(execution, module, where):
            self._followed.add(execution)
        return execution in self._followed

    def _of_torch(
        self,
        dispatched: OpFacts,
        place: CodePlace,
        node: Any,
        tensors: list[torch.Tensor],
        keys: Keys,
    ) -> OpContext:
        if place.optimizes:
            module = place.module or self.names.owner_among(keys)
            return _context(("optimizer", module, None, "", place.where, ""))
        if node is not None and not place.repeats:
            return self._backward(dispatched.name, place, node, tensors)
        context = self._forward(
            dispatched, place, "forward" if node is None else "recompute", tensors
        )
        if context.where or node is None:
            return context
        called = self._forwards.of(sequence_number(node)).where
        return context._replace(where=called or line_above(place.engine))

    def _forward(
        self, dispatched: OpFacts, place: CodePlace, stage: str, tensors: list[torch.Tensor]
    ) -> OpContext:
        sequence = next_sequence() - 1
        followed = torch.is_grad_enabled() and True in [x.requires_grad for x in tensors]
        module = place.module or ""
        if followed and stage == "forward":
            self._begin_pass()
        forwards = self._forwards
        fresh = forwards.note_new(sequence, module, place.where)
        if dispatched.in_place and followed:
            forwards.note_written(sequence, module, place.where)
        saved, self._saved = self._saved, None
        if fresh:  # this operation is the first since the autograd node was made
            if dispatched.name == _COPY and forwards.is_new(sequence - 1):
                self._saved = sequence - 1
        elif saved is not None and saved == sequence - 1 and dispatched.in_place:
            sequence, fresh = saved, forwards.note_new(saved, module, place.where)
        seq = self._number(sequence) if fresh else None
        return _context((stage, module, seq, "", place.where, ""))

    def _begin_pass(self) -> None:
        """Note a forward with gradients: the first one after a backward begins the next pass."""
        if self._ended:
            self.pass_index, self._ended = self.pass_index + 1, False

    def _backward(
        self, name: str, place: CodePlace, node: Any, tensors: list[torch.Tensor]
    ) -> OpContext:
        self._ended = True
        sequence, called = sequence_number(node), node.name()
        if sequence >= _NO_SEQUENCE:
            module = self.names.owner(getattr(node, "variable", None))
            where = place.where or line_above(place.engine)
            return _context(("accumulate", module, None, called, where, ""))
        # torch dispatches an operation for each node of its own at once, or for `torch.func` later;
        # a Function of the user's may run none.
        forward = self._forwards.of(sequence, later=not isinstance(node, NodeContext))
        where = place.where or forward.where or line_above(place.engine)
        seq = self._number(forward.number)
        if not place.where and name in _SUMS and _alike(tensors):
            return _context(("accumulate", forward.module, seq, called, where, ""))
        module = place.module or forward.module
        if torch.is_grad_enabled():  # this backward can be differentiated (`create_graph`)
            self._forwards.note_new(next_sequence() - 1, module, where)
        return _context(("backward", module, seq, called, where, ""))

    def _number(self, sequence: object) -> int:
        return self._numbers.setdefault(sequence, len(self._numbers))


def _alike(tensors: list[torch.Tensor]) -> bool:
    """Return whether `tensors` may be two gradients that autograd adds: two tensors of equal shape.

    An `add` of two tensors of equal shape hardly ever belongs to a derivative.
    """
    return len(tensors) == 2 and tensors[0].shape == tensors[1].shape
