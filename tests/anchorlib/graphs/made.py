"""Operations made by hand and by hypothesis, and the readers of each format that is written."""

from __future__ import annotations

import html
import io
import json
import warnings
from collections import Counter
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import strategies as st

from anchorlib.graphs import Graph, write_graphs
from anchorlib.operations import STAGES, Op, Operand

HARD = "ab.01_-/\\:^\"'<>{}[];,\n\r\t\x00\x1b %&#$|=\u202eü漢\ud800\U0001f600…"
"""Letters that mean something in one of the formats, or cannot be written at all."""


def operand(argument: str = "out", dtype: str = "float32", shape=(5, 4), digest=None) -> Operand:
    return Operand(argument, dtype, shape, (1,) * len(shape), digest)


def made(index: int, op: str, **changed: Any) -> Op:
    """An operation of one input and one output in forward."""
    told: dict[str, Any] = {
        "stage": "forward",
        "module": "",
        "seq": None,
        "node": "",
        "where": "net.py:12",
        "inputs": (operand("self"),),
        "outputs": (operand(),),
        "args": "",
        "producers": (None,),
        "mutates": (),
        "view": False,
    }
    return Op(index=index, op=op, **{**told, **changed})


hard = st.text(HARD, max_size=8)
operands = st.lists(
    st.builds(
        operand,
        hard,
        st.sampled_from(["float32", "int64", "bool", "float4_e2m1fn_x2", "made up\n"]),
        st.sampled_from([(), (0,), (3,), (2, 5), (2**40, 1)]),
        st.sampled_from([None, "00" * 16, "11" * 16]),
    ),
    max_size=3,
).map(tuple)


@st.composite
def steps(draw: st.DrawFn) -> list[Op]:
    """Operations of some steps under any names, producers that are none of theirs included."""
    found = []
    for step in range(draw(st.integers(1, 2))):
        for index in range(draw(st.integers(0, 6))):
            inputs = draw(operands)
            maker = st.none() | st.integers(-1, 7)
            found.append(
                made(
                    index,
                    draw(st.sampled_from(["aten.mm.default", "odd", "", "."]) | hard),
                    stage=draw(st.sampled_from(STAGES) | hard),
                    module=draw(hard),
                    where=draw(hard),
                    args=draw(hard),
                    inputs=inputs,
                    outputs=draw(operands),
                    producers=tuple(draw(maker) for _ in inputs),
                    mutates=(draw(st.integers(0, 9)),),
                    view=draw(st.booleans()),
                    step=step,
                )
            )
    return found


def written(graphs: list[Graph], suffix: str) -> bytes:
    file = io.BytesIO()
    write_graphs(graphs, suffix, file, "a remark")
    return file.getvalue()


Shape = tuple[int, Counter[str], Counter[tuple[str, str]]]
"""How many nodes, how often each label, how often each edge between two labels."""


def shape_of(graphs: list[Graph]) -> Shape:
    labels = Counter(node.label for graph in graphs for node in graph.nodes)
    edges = Counter(
        (graph.nodes[maker].label, graph.nodes[taker].label)
        for graph in graphs
        for maker, taker in graph.edges
    )
    return labels.total(), labels, edges


def read_onnx(data: bytes) -> Shape:
    """As the package onnx reads it, after its checker found nothing to object to."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model)
    nodes = model.graph.node
    makers = {name: node.op_type for node in nodes for name in node.output}
    assert len({node.name for node in nodes}) == len(nodes)
    return (
        len(nodes),
        Counter(node.op_type for node in nodes),
        Counter((makers[i], n.op_type) for n in nodes for i in n.input if i in makers),
    )


def read_pbtxt(data: bytes) -> Shape:
    """As TensorBoard reads it."""
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    nodes = text_format.Parse(data.decode(), GraphDef()).node
    makers = {node.name: node.op for node in nodes}
    assert len(makers) == len(nodes)
    return (
        len(nodes),
        Counter(node.op for node in nodes),
        Counter((makers[i.partition(":")[0]], n.op) for n in nodes for i in n.input),
    )


def read_json(data: bytes) -> Shape:
    found = json.loads(data)
    assert found["label"]
    labels: Counter[str] = Counter()
    edges: Counter[tuple[str, str]] = Counter()
    for graph in found["graphs"]:
        names = {node["id"]: node["label"] for node in graph["nodes"]}
        assert len(names) == len(graph["nodes"])
        labels.update(names.values())
        edges.update(
            (names[edge["sourceNodeId"]], node["label"])
            for node in graph["nodes"]
            for edge in node["incomingEdges"]
        )
    return labels.total(), labels, edges


def read_dot(data: bytes) -> Shape:
    pydot = pytest.importorskip("pydot")
    with warnings.catch_warnings():
        # pydot calls pyparsing by names that are going out of use.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        (graph,) = pydot.graph_from_dot_data(data.decode())
    names: dict[str, str] = {}
    todo = [graph]
    while todo:
        one = todo.pop()
        todo += one.get_subgraphs()
        for node in one.get_nodes():
            if node.get_name() not in ("graph", "node", "edge", '"\\n"'):
                names[node.get_name()] = unquoted(node.get("label"))
    edges = Counter((names[e.get_source()], names[e.get_destination()]) for e in graph.get_edges())
    return len(names), Counter(names.values()), edges


def unquoted(text: str) -> str:
    return html.unescape(text[1:-1]).replace("\\\\", "\\")


READERS = {".onnx": read_onnx, ".pbtxt": read_pbtxt, ".json": read_json, ".dot": read_dot}
