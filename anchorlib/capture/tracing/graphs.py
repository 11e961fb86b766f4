"""A compiler's graph as it was read while it was compiled: its operations, without any values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from anchorlib.capture.tensors import dtype_name
from anchorlib.capture.tracing.arguments import Arguments, tensors_in
from anchorlib.capture.tracing.nodes import NodeFacts, facts_of_node, op_name
from anchorlib.capture.tracing.schemas import OpFacts, facts_of
from anchorlib.operations import OperandForm
from anchorlib.torch_private import Overload

__all__ = ["OUR_OPERATORS", "Graph", "GraphOp", "Slot", "read_graph"]

OUR_OPERATORS: Final = "anchorlib."


class Slot(NamedTuple):
    """A tensor of a graph: which output of which node; of an input of the graph the first."""

    node: str
    place: int = 0


class GraphOp(NamedTuple):
    """One operation of a graph.

    name: of its node. takes: where each of its inputs comes from.
    """

    name: str
    op: str
    node: NodeFacts
    facts: OpFacts | None
    inputs: tuple[OperandForm, ...]
    takes: tuple[Slot, ...]
    outputs: tuple[OperandForm, ...]
    args: str
    floats: tuple[float, ...]
    mutates: tuple[int, ...]
    group: int | None


@dataclass(slots=True)
class Graph:
    """The operations of one graph, in its order.

    inputs: what it calls its arguments. outputs: where what it returns comes from, None for what
    is no tensor. sightings: of our operators, by name and arguments, the tensor that they take.
    """

    inputs: list[str] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    outputs: list[Slot | None] = field(default_factory=list)
    sightings: dict[tuple[Any, ...], Slot] = field(default_factory=dict)


def read_graph(graph: fx.Graph, groups: Mapping[str, int]) -> Graph:
    """What stands in `graph`. groups: the kernels of its nodes, by their names."""
    found = Graph()
    for node in graph.nodes:
        if node.op == "placeholder":
            found.inputs.append(node.name)
        elif node.op == "output":
            returned = node.args[0]
            found.outputs = [
                _slot(one) if isinstance(one, fx.Node) else None
                for one in (returned if isinstance(returned, list | tuple) else (returned,))
            ]
        elif node.op == "call_function" and op_name(node.target) != "getitem":
            called = op_name(node.target)
            if called.startswith(OUR_OPERATORS):
                if isinstance(node.args[0], fx.Node):
                    found.sightings[called, *_constants(node.args)] = _slot(node.args[0])
            else:
                found.ops.append(_op(node, called, groups.get(node.name)))
    return found


def _op(node: fx.Node, called: str, group: int | None) -> GraphOp:
    facts = None
    if isinstance(node.target, Overload):
        facts = facts_of(node.target)
    slots: dict[int, Slot] = {}

    def value(one: fx.Node) -> Any:
        told = one.meta.get("val")
        slots[id(told)] = _slot(one)
        return _Unread() if told is None else told

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
        tuple(slots[id(one)] for one in arguments.tensors),
        tuple(_form("out", one) for one in made),
        arguments.text,
        tuple(arguments.floats),
        tuple(arguments.places(facts.writes)) if facts is not None and facts.writes else (),
        group,
    )


class _Unread:
    """Stands for a value of which the graph does not say what it is."""

    def __str__(self) -> str:
        return "?"


def _slot(node: Any) -> Slot:
    """Where the tensor of a node is made."""
    if node.op == "call_function" and op_name(node.target) == "getitem":
        return Slot(node.args[0].name, node.args[1] if isinstance(node.args[1], int) else 0)
    return Slot(node.name)


def _constants(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one for one in args if isinstance(one, str | int | bool))


def _form(name: str, x: torch.Tensor) -> OperandForm:
    stride = tuple(map(_size, x.stride())) if x.layout is torch.strided else ()
    return (name, dtype_name(x.dtype), tuple(map(_size, x.shape)), stride, False)


def _size(size: Any) -> int:
    """A size as it was while this was compiled; to ask for it would bind a symbol to it."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return hint if isinstance(hint, int) else 0
