"""`anchor graph`: traced operations as files that viewers open."""

from __future__ import annotations

import shlex

import pytest

from anchor_cli.graph import EXAMPLES
from anchorlib.graphs import SUFFIXES
from anchorlib.operations import gap_entry
from tests.anchorlib.graphs.made import READERS
from tests.cli.made import HOSTILE, anchor, make_run, record
from tests.cli.test_ops import STEP, make_traced, traced


def drawn(file, *options, store, run="run1"):
    return anchor("graph", run, "-o", file, "--store", store, *options)


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".ONNX"])
def test_a_traced_step_is_a_file_that_its_viewer_reads(tmp_path, suffix):
    make_traced(tmp_path)
    file = tmp_path / f"run1{suffix}"
    done = drawn(file, "--json", store=tmp_path)
    assert done.code == 0
    said = {"run": "run1", "rank": 0, "steps": [0], "operations": 4, "edges": 0, "views": 0}
    assert done.json == {"file": str(file), **said, "left_out": 0}
    assert done.err == f"anchor: wrote {file}: 4 operations of step 0 of run1, rank 0\n"
    nodes, labels, _ = READERS[suffix.lower()](file.read_bytes())
    assert nodes == 4
    assert set(labels) == {"tanh", "mul", "tanh_backward", "add_"}


@pytest.mark.parametrize(
    ("options", "steps", "operations"),
    [
        (("--step", "1"), [1], 4),
        (("--step", "-1"), [2], 4),
        (("--step", "1:"), [1, 2], 8),
        (("--stage", "backward"), [0], 1),
        (("--module", "*1"), [0], 3),
        (("--rank", "1"), [0], 4),
    ],
)
def test_a_graph_is_narrowed_by_step_stage_module_and_rank(tmp_path, options, steps, operations):
    make_traced(tmp_path)
    make_traced(tmp_path, rank=1)
    said = drawn(tmp_path / "a.dot", "--json", *options, store=tmp_path).json
    assert (said["steps"], said["operations"]) == (steps, operations)
    assert said["rank"] == int("--rank" in options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "a.png"), "the suffix says which format; choose .onnx, .json, .pbtxt, .dot"),
        (("-o", "a"), "the suffix says which format"),
        (("-o", "nowhere/a.dot"), "cannot write nowhere/a.dot: No such file"),
        (("-o", "a.dot", "--stage", "middle"), "stage is one of forward, recompute"),
        (("-o", "a.dot", "--module", "fc9"), "see `anchor ops`"),
        (("-o", "a.dot", "--step", "7"), "no step that --step 7 names was traced; steps 0-2 were"),
        (("-o", "a.dot", "--step", "two"), "--step 'two'"),
        (("-o", "a.dot", "--rank", "4"), "rank 4 recorded nothing in run1"),
        ((), "missing option '--output' / '-o'"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_no_file(tmp_path, monkeypatch, options, said):
    make_traced(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = anchor("graph", "run1", "--store", tmp_path, *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_was_not_traced_says_how_to_trace_one(tmp_path):
    make_run(tmp_path, [record()])
    done = drawn(tmp_path / "a.dot", store=tmp_path)
    assert done.code == 2
    assert "anchor run --trace 0:2" in done.err


def test_a_file_that_stands_there_is_replaced_whole_or_not_at_all(tmp_path):
    make_traced(tmp_path)
    file = tmp_path / "a.dot"
    file.write_text("old")
    assert drawn(file, "--stage", "middle", store=tmp_path).code == 2
    assert file.read_text() == "old"
    assert drawn(file, store=tmp_path).code == 0
    assert file.read_text().startswith("// 4 operations")


def test_what_could_not_be_traced_is_told(tmp_path):
    make_traced(tmp_path, gaps=[gap_entry("operations inside compiled code", 2, 0, 1)])
    done = drawn(tmp_path / "a.json", store=tmp_path)
    assert "run1 lacks operations inside compiled code: steps 0-1" in done.err


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_hostile_names_are_escaped_in_files(tmp_path, suffix):
    make_traced(tmp_path, ops=[traced(HOSTILE, HOSTILE, HOSTILE, where=HOSTILE, args=HOSTILE)])
    file = tmp_path / f"a{suffix}"
    assert drawn(file, store=tmp_path).code == 0
    data = file.read_bytes()
    assert b"\x1b[" not in data
    assert "\u202e".encode() not in data
    assert READERS[suffix](data)[0] == 1


def test_the_examples_of_its_help_run(tmp_path, monkeypatch):
    make_traced(tmp_path / "anchors", ops=[*STEP, traced("aten.mm.x", "backward", "encoder.0")])
    monkeypatch.chdir(tmp_path)
    lines = [line.split() for line in EXAMPLES.splitlines() if line.strip().startswith("anchor ")]
    assert len(lines) == 3
    for line in lines:
        assert anchor(*shlex.split(" ".join(line[1:]))).code == 0
