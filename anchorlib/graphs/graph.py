"""Traced operations as nodes and edges, before they are written in any format.

Each operation is a node. A step's stages are "forward", "backward", "optimizer" and others.

Views are left out: the log of operations names, for each input, the operation that wrote the memory
which the input reads, so no edge leads through a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from anchorlib.graphs.naming import cut, domain_of, label_of, part, scope_of
from anchorlib.operations import Op, Operand, OpKey, op_key

__all__ = [
    "MOST_NODES",
    "Graph",
    "GraphTensor",
    "InputSource",
    "Node",
    "graph_of",
]

MOST_NODES: Final = 20_000
"""The most operations that a graph holds; viewers hang with far fewer."""

_MOST_TOLD: Final = 8  # tensors of one operation that its attributes list


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output tensor of an operation.

    argument: the operation's name for the tensor, which is not unique in a graph.
    """

    argument: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class InputSource:
    """An input of an operation, and the node that it comes from.

    maker: the index in `Graph.nodes` of the operation that made the tensor; None where no operation
        of the graph made it: a parameter, a batch, the output of an operation that was not chosen.
    output: the index of the tensor among the maker's outputs; 0 where `maker` is None.
    outside: a number for the tensor where `maker` is None, else None. Inputs with equal bits, dtype
        and shape in one step and module have one number: they are drawn as one tensor.
    """

    tensor: GraphTensor
    maker: int | None
    output: int = 0
    outside: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One operation as a node of a graph.

    name: the node's path, unique among all graphs of a file: "backward/fc1/mm_28".
    scope: the parts of the path before the last: ("backward", "fc1").
    label: the operation's name without its library and overload: "mm".
    domain: the operation's library: "aten".
    stage: the part of the step that ran the operation, such as "backward".
    attributes: further facts as printable, short texts, by the fact's name.
    mark: what the other run does differently here; "" where the runs do not differ, or where there
        is no other run.
    """

    name: str
    scope: tuple[str, ...]
    label: str
    domain: str
    stage: str
    inputs: tuple[InputSource, ...]
    outputs: tuple[GraphTensor, ...]
    attributes: Mapping[str, str]
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """The operations of one run as a graph.

    name: the run's name, printable.
    nodes: the operations in the order in which they ran, so that an input's maker comes first.
    views: how many operations were left out because they make no tensor of their own.
    left_out: how many more were left out because the graph would have had too many nodes.
    against: whether the run was compared with another run.
    """

    name: str
    nodes: tuple[Node, ...]
    views: int = 0
    left_out: int = 0
    against: bool = False

    @property
    def edges(self) -> list[tuple[int, int]]:
        """A pair of indices in `nodes`, (maker, user), for each input that a node of it made.

        A pair occurs several times where the user takes several tensors of the maker.
        """
        return [
            (one.maker, place)
            for place, node in enumerate(self.nodes)
            for one in node.inputs
            if one.maker is not None
        ]

    @property
    def marked(self) -> int:
        """How many operations differ from those of the other run."""
        return sum(bool(node.mark) for node in self.nodes)


def graph_of(
    ops: Sequence[Op],
    name: str,
    *,
    marks: Mapping[OpKey, str] | None = None,
    scope: Sequence[str] = (),
    most: int = MOST_NODES,
) -> Graph:
    """Make a graph of the operations of one rank of a run.

    ops: the operations, sorted by step and index, as `Run.ops` gives them.
    name: the run's name.
    marks: a text for each operation that differs from another run, by (rank, step, index) of the
        operation; None where there is no other run.
    scope: parts that are put before every node's path, such as the run's name where a file holds
        two runs.
    most: how many operations the graph may hold; the first ones are kept.
    """
    drawn = [op for op in ops if op.outputs and not op.view]
    several = len({op.step for op in drawn}) > 1
    # By key: a log from elsewhere may state an operation twice.
    kept = list(islice({op_key(op): op for op in drawn}.values(), most))
    sources = _Sources(kept)
    mark_of = marks if marks is not None else MappingProxyType({})
    around = tuple(map(part, scope))
    nodes = tuple(
        _node(op, (*around, *scope_of(op, step=several)), sources, mark_of.get(op_key(op), ""))
        for op in kept
    )
    return Graph(cut(name), nodes, len(ops) - len(drawn), len(drawn) - len(kept), marks is not None)


class _Sources:
    """Finds, for the inputs of an operation, which operations of the graph made them."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._at = {op_key(op): at for at, op in enumerate(ops)}
        self._outside: dict[tuple[object, ...], int] = {}

    def of(self, op: Op) -> tuple[InputSource, ...]:
        makers = (*op.producers, *[None] * (len(op.inputs) - len(op.producers)))
        return tuple(
            self._source(op, number, operand, maker)
            for number, (operand, maker) in enumerate(zip(op.inputs, makers, strict=False))
        )

    def _source(self, op: Op, number: int, operand: Operand, maker: int | None) -> InputSource:
        tensor = _tensor(operand)
        at = None if maker is None else self._at.get((op.rank, op.step, maker))
        # A log from elsewhere may name a maker that ran later than its taker.
        if at is not None and at < self._at[op_key(op)]:
            return InputSource(tensor, at, _output(self._ops[at], operand))
        # Equal bits in one module are one tensor, as a weight that forward and the optimizer read.
        own = (op.index, number) if operand.digest is None else (operand.digest,)
        key = (op.step, op.module, operand.dtype, operand.shape, *own)
        return InputSource(tensor, None, outside=self._outside.setdefault(key, len(self._outside)))


def _output(maker: Op, taken: Operand) -> int:
    """Return the index of the output of `maker` that is the input `taken` of another operation.

    It is the output with the bits of `taken`, else the first with its dtype and shape, else 0.
    """
    for alike in (
        lambda one: taken.digest is not None and one.digest == taken.digest,
        lambda one: (one.dtype, one.shape) == (taken.dtype, taken.shape),
    ):
        if (
            number := next((n for n, one in enumerate(maker.outputs) if alike(one)), None)
        ) is not None:
            return number
    return 0


def _node(op: Op, scope: tuple[str, ...], sources: _Sources, mark: str) -> Node:
    label = label_of(op)
    return Node(
        "/".join((*scope, f"{label}_{op.index}")),
        scope,
        label,
        domain_of(op),
        op.stage,
        sources.of(op),
        tuple(map(_tensor, op.outputs)),
        {name: text for name, text in _attributes(op, mark) if text},
        mark,
    )


def _attributes(op: Op, mark: str) -> list[tuple[str, str]]:
    digests = " ".join(one.digest or "-" for one in op.outputs[:_MOST_TOLD])
    numbers = [
        ("sequence", "" if op.seq is None else str(op.seq)),
        ("step", str(op.step)),
        ("pass", str(op.pass_index)),
        ("rank", str(op.rank)),
        ("index", str(op.index)),
    ]
    texts = [
        ("differs", mark),
        ("operation", op.op),
        ("stage", op.stage),
        ("module", op.module),
        ("arguments", op.args),
        ("where", op.where),
        ("autograd", op.node),
        ("decomposed_from", op.origin),
        ("kernel", "" if op.group is None else str(op.group)),
        ("takes", _listed(op.inputs)),
        ("makes", _listed(op.outputs)),
        ("writes", _listed([op.inputs[at] for at in op.mutates if at < len(op.inputs)])),
        ("digests", digests if digests.strip("- ") else ""),
        ("source", op.source),
    ]
    return [(name, cut(text)) for name, text in [*texts, *numbers]]


def _listed(operands: Sequence[Operand]) -> str:
    tensors = [f"{one.argument} {_tensor(one)}" for one in operands[:_MOST_TOLD]]
    more = len(operands) - len(tensors)
    return "; ".join([*tensors, *([f"{more} more"] if more else [])])


def _tensor(operand: Operand) -> GraphTensor:
    return GraphTensor(cut(operand.argument), cut(operand.dtype), operand.shape)
