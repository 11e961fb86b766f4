"""Graphs of operations, and the files that hold them."""

from __future__ import annotations

import json
import re

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from tensorboard.compat.proto.graph_pb2 import GraphDef

from anchorlib.graphs import SUFFIXES, graph_of
from tests.anchorlib.graphs.made import HARD, READERS, made, operand, shape_of, steps, written
from tests.seeds import examples

DIGEST = "ab" * 16
STEP = [
    made(0, "aten.t.default", module="fc1", view=True),
    made(1, "aten.addmm.default", module="fc1", outputs=(operand(shape=(5, 8)),)),
    made(2, "aten.tanh.default", module="act", producers=(1,), inputs=(operand(shape=(5, 8)),)),
    made(
        3,
        "aten.tanh_backward.default",
        stage="backward",
        module="act",
        node="TanhBackward0",
        seq=4,
        inputs=(operand("grad_output"), operand("output", shape=(5, 8))),
        producers=(None, 2),
    ),
]  # fmt: skip


def test_a_node_is_an_operation_under_stage_and_module_and_views_are_left_out():
    graph = graph_of(STEP, "run1")
    assert [node.name for node in graph.nodes] == [
        "forward/fc1/addmm_1",
        "forward/act/tanh_2",
        "backward/act/tanh_backward_3",
    ]
    assert graph.edges == [(0, 1), (1, 2)]
    assert graph.views == 1
    assert graph.nodes[1].inputs[0].tensor.shape == (5, 8)
    attributes = graph.nodes[2].attributes
    assert (attributes["autograd"], attributes["sequence"], attributes["where"]) == (
        "TanhBackward0",
        "4",
        "net.py:12",
    )
    assert attributes["takes"] == "grad_output float32[5,4]; output float32[5,8]"


def test_an_edge_leaves_from_the_output_whose_bits_are_taken():
    two = (operand(shape=(5,)), operand(shape=(5,), digest=DIGEST))
    taken = operand("self", shape=(5,), digest=DIGEST)
    graph = graph_of(
        [made(0, "aten.a.x", outputs=two), made(1, "aten.b.x", inputs=(taken,), producers=(0,))],
        "r",
    )
    assert graph.nodes[1].inputs[0].output == 1


def test_a_weight_that_two_operations_of_a_module_read_is_one_input():
    weight = operand("self", digest=DIGEST)
    ops = [made(n, "aten.mul.x", module="fc1", inputs=(weight,)) for n in range(2)]
    ops.append(made(2, "aten.mul.x", module="fc2", inputs=(weight,)))
    assert [node.inputs[0].outside for node in graph_of(ops, "r").nodes] == [0, 0, 1]


def test_operations_of_several_steps_stand_under_their_step():
    ops = [made(0, "aten.mm.x", step=step) for step in (3, 4)]
    assert [node.name for node in graph_of(ops, "r").nodes] == [
        "step3/forward/mm_0",
        "step4/forward/mm_0",
    ]


def test_a_graph_holds_so_many_operations_and_says_how_many_it_left_out():
    ops = [made(n, "aten.mm.x", producers=(n - 1,)) for n in range(10)]
    graph = graph_of(ops, "r", most=4)
    assert (len(graph.nodes), graph.left_out, len(graph.edges)) == (4, 6, 3)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=examples(25))
@given(ops=steps())
def test_whatever_modules_are_called_each_format_parses_again_with_the_same_nodes_and_edges(
    suffix, ops
):
    graph = graph_of(ops, "run1", marks={(0, 0, 1): 'runs "another"\n'})
    assert READERS[suffix](written([graph], suffix)) == shape_of([graph])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_runs_stand_in_one_file_beside_each_other(suffix):
    graphs = [graph_of(STEP, name, marks={}, scope=(name,)) for name in ("one", "two")]
    assert READERS[suffix](written(graphs, suffix)) == shape_of(graphs)


def test_what_differs_is_red_where_a_format_has_colours():
    graph = graph_of(STEP, "run1", marks={(0, 0, 3): "run2 runs mul sub mul"})
    files = {suffix: written([graph], suffix).decode(errors="replace") for suffix in SUFFIXES}
    for text in files.values():
        assert "run2 runs mul sub mul" in text
    styled = [n["label"] for n in json.loads(files[".json"])["graphs"][0]["nodes"] if "style" in n]
    assert styled == ["tanh_backward"]
    assert [line.split()[0] for line in files[".dot"].splitlines() if "#c62828" in line] == [
        '"backward/act/tanh_backward_3"'
    ]
    assert files[".pbtxt"].count("DIFFERS") == 1
    assert files[".pbtxt"].count("SAME") == 2


def test_dtypes_and_shapes_stand_in_the_onnx_model():
    onnx = pytest.importorskip("onnx")
    graph = onnx.load_from_string(written([graph_of(STEP, "run1")], ".onnx")).graph
    made_by = {one.name: one.type.tensor_type for one in (*graph.value_info, *graph.output)}
    value = made_by["forward/fc1/addmm_1:0"]
    assert value.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_value for dim in value.shape.dim] == [5, 8]


def test_a_log_that_names_later_makers_or_one_place_twice_is_a_graph_without_cycles():
    ops = [
        made(0, "aten.a.x", producers=(1,)),
        made(1, "aten.b.x", producers=(1,)),
        made(2, "aten.c.x", producers=(0,)),
        made(2, "aten.c.x", producers=(1,)),
    ]
    graph = graph_of(ops, "r")
    assert [node.name for node in graph.nodes] == ["forward/a_0", "forward/b_1", "forward/c_2"]
    assert graph.edges == [(1, 2)]


def test_names_in_a_graph_def_are_those_that_tensorflow_allows():
    ops = [made(n, f"aten.{one}.x", stage=one, module=one) for n, one in enumerate(HARD)]
    text = written([graph_of(ops, "r", scope=("_r",))], ".pbtxt").decode()
    names = [node.name for node in text_format.Parse(text, GraphDef()).node]
    assert len({*names}) == len(HARD)
    assert all(re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/-]*", name) for name in names)
