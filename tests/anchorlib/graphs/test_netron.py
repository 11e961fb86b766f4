"""Netron's own readers read what is written; they are JavaScript, and want node and netron."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from anchorlib.graphs import graph_of
from tests.anchorlib.graphs.made import HARD, made, operand, written

NETRON = find_spec("netron")


@pytest.mark.slow
@pytest.mark.skipif(NETRON is None, reason="netron is not installed")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_netron_reads_nodes_and_edges_whatever_modules_are_called(tmp_path):
    two = (operand(), operand(shape=(7,)))
    ops = [made(0, "aten.mm.default", outputs=two)]
    ops += [
        made(n, f"lib{letter}.op{letter}.x", module=f"a{letter}b.{letter}", producers=(n - 1,))
        for n, letter in enumerate(HARD, 1)
    ]
    graph = graph_of(ops, "run1", marks={(0, 0, 2): 'runs "another"\n'})
    files = [tmp_path / f"run1{suffix}" for suffix in (".onnx", ".pbtxt", ".dot")]
    for file in files:
        file.write_bytes(written([graph], file.suffix))
    script = Path(__file__).with_name("netron_reads.mjs")
    assert NETRON is not None
    folder = Path(str(NETRON.origin)).parent
    lines = subprocess.check_output(["node", script, folder, *files], text=True).splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["format"] for one in found] == ["ONNX v10", "TensorFlow Graph", "DOT"]
    for one in found:
        assert len(one["nodes"]) == len(graph.nodes)
        assert len(one["edges"]) == len(graph.edges)
    onnx, pbtxt, _ = found
    assert [tuple(node) for node in onnx["nodes"]] == [(n.name, n.label) for n in graph.nodes]
    assert [tuple(edge) for edge in onnx["edges"]] == graph.edges
    assert [tuple(edge) for edge in pbtxt["edges"]] == graph.edges
