"""`anchor graph`: traced operations as files that viewers open."""

from __future__ import annotations

import re
import shlex

import pytest

from anchor_cli.commands.graph import EXAMPLES
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
    assert done.json == {"file": str(file), "runs": [{**said, "left_out": 0, "differing": None}]}
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
    (said,) = drawn(tmp_path / "a.dot", "--json", *options, store=tmp_path).json["runs"]
    assert (said["steps"], said["operations"]) == (steps, operations)
    assert said["rank"] == int("--rank" in options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "a.png"), "the suffix says which format; choose .onnx, .json, .pbtxt, .dot"),
        (("-o", "a"), "the suffix says which format"),
        (("-o", "nowhere/a.dot"), "cannot write nowhere/a.dot: there is no folder"),
        (("-o", "a.dot", "--stage", "middle"), "stage is one of forward, recompute"),
        (("-o", "a.dot", "--module", "fc9"), "see `anchor ops`"),
        (
            ("-o", "a.dot", "--step", "7"),
            "--step 7 names no traced step; there are steps 0-2",
        ),
        (("-o", "a.dot", "--step", "two"), "--step 'two'"),
        (("-o", "a.dot", "--rank", "4"), "rank 4 recorded nothing in run1"),
        (("-o", "a.dot", "--against", ""), "it is empty"),
        (("-o", "a.dot", "--against", "run7"), "run7"),
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_against_another_run_both_are_drawn_and_what_differs_is_marked(tmp_path, suffix):
    other = [traced("aten.mul.Tensor", "backward", "tanh1", node="TanhBackward0")] * 2
    make_traced(tmp_path)
    make_traced(tmp_path / "b", ops=[*STEP[:2], *other, STEP[3]])
    (tmp_path / "b" / "run1.zarr").rename(tmp_path / "run2.zarr")
    file = tmp_path / f"a{suffix}"
    done = drawn(file, "--against", "run2", "--json", store=tmp_path)
    assert done.code == 0
    assert [one["differing"] for one in done.json["runs"]] == [1, 2]
    assert "run1, rank 0, of which 1 differ; 5 operations" in done.err
    assert READERS[suffix](file.read_bytes())[0] == 9
    text = re.sub(' xlabel="[^"]*"', "", file.read_text(errors="replace"))
    assert text.count("run2 runs mul mul here") == 1
    assert text.count("run1 runs tanh_backward here") == 2


def test_runs_of_one_name_are_told_apart_and_equal_ones_have_no_mark(tmp_path):
    make_traced(tmp_path)
    make_traced(tmp_path / "b")
    other = tmp_path / "b" / "run1.zarr"
    done = drawn(tmp_path / "a.json", "--against", other, "--json", store=tmp_path)
    assert [(one["run"], one["differing"]) for one in done.json["runs"]] == [
        ("run1 A", 0),
        ("run1 B", 0),
    ]


def test_a_run_that_was_not_traced_has_nothing_to_be_drawn_against(tmp_path):
    make_traced(tmp_path)
    make_run(tmp_path / "b", [record()])
    (tmp_path / "b" / "run1.zarr").rename(tmp_path / "run2.zarr")
    done = drawn(tmp_path / "a.json", "--against", "run2", store=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no operation of rank 0 of run2 was traced" in done.err


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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_of_a_hostile_name_writes_nothing_of_its_own_into_a_file(tmp_path, suffix):
    make_traced(tmp_path / "b")
    make_traced(tmp_path)
    hostile = tmp_path / f'a\n"; {HOSTILE.replace("/", "")}.zarr'
    (tmp_path / "run1.zarr").rename(hostile)
    file = tmp_path / f"a{suffix}"
    for against, nodes in (((), 4), (("--against", tmp_path / "b" / "run1.zarr"), 8)):
        done = drawn(file, "--json", *against, store=tmp_path, run=hostile)
        assert done.json["runs"][0]["run"] == hostile.name.removesuffix(".zarr")
        data = file.read_bytes()
        assert b"\x1b[" not in data
        assert b'\n"; ' not in data
        assert READERS[suffix](data)[0] == nodes


def test_steps_of_which_nothing_computes_are_drawn_without_a_mark(tmp_path):
    make_traced(tmp_path, ops=[traced("aten.detach.default", "forward", "fc1")])
    other = tmp_path / "b"
    make_traced(other)
    done = drawn(tmp_path / "a.dot", "--against", other / "run1.zarr", store=tmp_path)
    assert done.code == 0
    assert done.err.count("of which 0 differ") == 2


def test_the_examples_of_its_help_run(tmp_path, monkeypatch):
    ops = [*STEP, traced("aten.mm.x", "backward", "encoder.0")]
    for name in ("eager", "compiled", "run1"):
        make_traced(tmp_path / "anchors", ops=ops)
        (tmp_path / "anchors" / "run1.zarr").rename(tmp_path / "anchors" / f"{name}.zarr")
    monkeypatch.chdir(tmp_path)
    lines = [line.split() for line in EXAMPLES.splitlines() if line.strip().startswith("anchor ")]
    assert len(lines) == 3
    for line in lines:
        assert anchor(*shlex.split(" ".join(line[1:]))).code == 0
