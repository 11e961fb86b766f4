"""Graphviz draws what is written for it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from anchorlib.graphs import graph_of
from tests.anchorlib.graphs.made import HARD, made, written

DOT = shutil.which("dot")
pytestmark = pytest.mark.skipif(DOT is None, reason="graphviz is not installed")


def drawn(graphs):
    """What Graphviz has of them, laid out; it complains of nothing."""
    done = subprocess.run(
        [str(DOT), "-Tjson"], input=written(graphs, ".dot"), capture_output=True, check=True
    )
    assert not done.stderr
    return json.loads(done.stdout)


def test_graphviz_draws_every_node_and_edge_whatever_modules_are_called():
    ops = [made(0, "aten.mm.default")]
    ops += [
        made(n, f"lib{letter}.op{letter}.x", module=f"a{letter}b.{letter}", producers=(n - 1,))
        for n, letter in enumerate(HARD, 1)
    ]
    graph = graph_of(ops, "run1", marks={(0, 0, 2): 'runs "another"\\N\n; so'}, scope=(HARD,))
    found = drawn([graph])
    nodes = {one["_gvid"]: one for one in found["objects"] if "tooltip" in one}
    assert len(nodes) == len(graph.nodes)
    assert len(found["edges"]) == len(graph.edges)
    assert [one["xlabel"] for one in nodes.values() if "xlabel" in one]


def test_stages_stand_beside_each_other_and_what_differs_says_how_once():
    ops = [
        made(0, "aten.tanh.default"),
        made(1, "aten.mm.default", producers=(0,)),
        made(2, "aten.mul.x", stage="backward", producers=(0,)),
        made(3, "aten.sub.x", stage="backward", producers=(2,)),
    ]
    marks = {(0, 0, n): "B runs tanh_backward here; other bits come out" for n in (2, 3)}
    found = drawn([graph_of(ops, "A", marks=marks)])
    nodes = {one["label"]: one for one in found["objects"] if "tooltip" in one}
    height = {label: float(one["pos"].split(",")[1]) for label, one in nodes.items()}
    assert height["tanh"] == height["mul"] > height["mm"] == height["sub"]
    assert [one.get("xlabel") for one in nodes.values()].count("B runs tanh_backward here") == 1
    assert min(one.get("label", "") for one in found["edges"]) == ""
