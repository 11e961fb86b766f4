"""A compiler's graph as it was read during compilation: its operations, without any values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from anchorlib.capture.tensors import dtype_name
from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.graph_nodes import NodeFacts, facts_of_node, op_name
from anchorlib.capture.tracing.schemas import OpFacts, facts_of
from anchorlib.operations import OperandForm
from anchorlib.torch_private import Overload

__all__ = ["OUR_OPERATORS", "CompilerGraph", "GraphOp", "NodeOutput", "read_graph"]

OUR_OPERATORS: Final = "anchorlib."


class NodeOutput(NamedTuple):
    """A tensor in a graph: one of the outputs of a node.

    node: the node's name. place: the number of the output; 0 for a single output, and for an input
        of the graph, which is a node too.
    """

    node: str
    place: int = 0


class GraphOp(NamedTuple):
    """One operation of a graph.

    name: the name of its node in the graph. op: the operation's name, such as "aten.add.Tensor".

    node: facts from the node's metadata. facts: facts from the operation's schema; None where torch
        has no schema of it.
    inputs, outputs: for each tensor the name of its argument ("out" for an output), its dtype,
        shape and strides. takes: which tensor of the graph each input is.

    args: the other arguments, as text. floats: the numbers that are placeholders in `args`.

    mutates: indices in `inputs` of the tensors that the operation writes in place. group: the
        number of the kernel that computes the operation; None where no kernel is known.
    """

    name: str
    op: str
    node: NodeFacts
    facts: OpFacts | None
    inputs: tuple[OperandForm, ...]
    takes: tuple[NodeOutput, ...]
    outputs: tuple[OperandForm, ...]
    args: str
    floats: tuple[float, ...]
    mutates: tuple[int, ...]
    group: int | None


@dataclass(slots=True)
class CompilerGraph:
    """The operations of one graph, in the graph's order.

    inputs: the names of the graph's arguments, as nodes. ops: its operations. outputs: the tensors
        that the graph returns, with None for each returned value that is no tensor.
    observed: the tensors that calls of anchorlib's own operators in the graph observe. Each has as
        its key the operator's name, followed by the constant arguments of the call.
    """

    inputs: list[str] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    outputs: list[NodeOutput | None] = field(default_factory=list)
    observed: dict[tuple[Any, ...], NodeOutput] = field(default_factory=dict)


def read_graph(graph: fx.Graph, groups: Mapping[str, int]) -> CompilerGraph:
    """Return the inputs, operations and outputs of `graph`, without any values.

    groups: the number of the kernel that computes a node, by the node's name; empty where kernels
        are not known.
    """
    read = CompilerGraph()
    for node in graph.nodes:
        if node.op == "placeholder":
            read.inputs.append(node.name)
        elif node.op == "output":
            returned = node.args[0]
            read.outputs = [
                _node_output(one) if isinstance(one, fx.Node) else None
                for one in (returned if isinstance(returned, list | tuple) else (returned,))
            ]
        elif node.op == "call_function" and op_name(node.target) != "getitem":
            called = op_name(node.target)
            if called.startswith(OUR_OPERATORS):
                if isinstance(node.args[0], fx.Node):
                    read.observed[called, *_constants(node.args)] = _node_output(node.args[0])
            else:
                read.ops.append(_op(node, called, groups.get(node.name)))
    return read


def _op(node: fx.Node, called: str, group: int | None) -> GraphOp:
    facts = None
    if isinstance(node.target, Overload):
        facts = facts_of(node.target)
    outputs: dict[int, NodeOutput] = {}

    def value(one: fx.Node) -> Any:
        stand_in = one.meta.get("val")
        outputs[id(stand_in)] = _node_output(one)
        return _Unread() if stand_in is None else stand_in

    names = () if facts is None else facts.arguments
    args = fx.map_arg(node.args, value)
    named = names or tuple(str(at) for at in range(len(args)))
    defaults = () if facts is None else facts.defaults
    arguments = Arguments(named, args, fx.map_arg(node.kwargs, value), defaults)
    made = list(tensors_in(node.meta.get("val")))
    return GraphOp(
        node.name,
        called,
        facts_of_node(node),
        facts,
        tuple(map(_form, arguments.names, arguments.tensors)),
        tuple(outputs[id(one)] for one in arguments.tensors),
        tuple(_form("out", one) for one in made),
        arguments.text,
        tuple(arguments.floats),
        tuple(arguments.places(facts.writes)) if facts is not None and facts.writes else (),
        group,
    )


class _Unread:
    """Stands for an argument whose value the graph does not tell; its text is "?"."""

    def __str__(self) -> str:
        return "?"


def _node_output(node: Any) -> NodeOutput:
    """Return the tensor that `node` stands for.

    For a `getitem` of another node's results, that is an output of the other node.
    """
    if node.op == "call_function" and op_name(node.target) == "getitem":
        return NodeOutput(node.args[0].name, node.args[1] if isinstance(node.args[1], int) else 0)
    return NodeOutput(node.name)


def _constants(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for one in args if isinstance(one, str | int | bool))


def _form(name: str, x: torch.Tensor) -> OperandForm:
    stride = tuple(map(_size, x.stride())) if x.layout is torch.strided else ()
    return (name, dtype_name(x.dtype), tuple(map(_size, x.shape)), stride, False)


def _size(size: Any) -> int:
    """Return a size as an int.

    For a symbolic size, that is torch's hint (the size seen while compiling), or 0 if it has none:
    `int(size)` would make torch.compile specialize the graph for that size.
    """
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return hint if isinstance(hint, int) else 0
