"""`anchor names` and `anchor runs`."""

from __future__ import annotations

import numpy as np

from anchor_cli.commands import names
from anchor_cli.commands.names import spans
from anchor_cli.terminal import Screen, name_tree
from anchorlib.record import Gap
from anchorlib.store import Writer
from tests.cli.made import HOSTILE, anchor, make_run, record
from tests.writing import put

WEIGHT = np.ones((2, 3), np.float32)


def two_ranks(store):
    records = [
        record("loss", "value", np.float32([1]).reshape(())),
        record("fc2.weight", "grad", WEIGHT),
        record("fc2.weight", "grad", WEIGHT, step=1),
        record("fc2.bias", "pass_grad", np.ones(3, np.uint16), dtype="bfloat16", mode="sum"),
    ]
    make_run(store, records)
    make_run(store, records[1:2], rank=1)


def test_names_are_listed_in_execution_order(tmp_path):
    two_ranks(tmp_path)
    done = anchor("names", "run1", "--store", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "name        kind       mode  dtype     shape  ranks  records  steps  size\n"
        "loss        value      all   float32   ()     0            1  0         4\n"
        "fc2.weight  grad       all   float32   2x3    0-1          3  0-1      72\n"
        "fc2.bias    pass_grad  sum   bfloat16  3      0            1  0         6\n"
    )


def test_names_as_json_have_exactly_these_fields(tmp_path):
    two_ranks(tmp_path)
    done = anchor("names", "run1", "fc2.weight", "--store", tmp_path, "--json")
    assert done.json == [
        {
            "name": "fc2.weight",
            "kind": "grad",
            "mode": "all",
            "dtype": "float32",
            "shape": [2, 3],
            "ranks": [0, 1],
            "records": 3,
            "first_step": 0,
            "last_step": 1,
            "bytes": 72,
            "gaps": 0,
        }
    ]


def test_names_take_selectors(tmp_path):
    two_ranks(tmp_path)
    done = anchor("names", "run1", "fc2*@grad", "loss", "--store", tmp_path, "--json")
    assert [one["name"] for one in done.json] == ["loss", "fc2.weight"]


def test_shapes_that_differ_are_marked(tmp_path):
    make_run(tmp_path, [record(raw=WEIGHT), record(raw=WEIGHT[:1], step=1)])
    assert "?x3" in anchor("names", "run1", "--store", tmp_path).out
    assert anchor("names", "run1", "--store", tmp_path, "--json").json[0]["shape"] == [None, 3]


def test_a_hostile_name_reaches_no_terminal_and_comes_back_exactly(tmp_path):
    make_run(tmp_path, [record(HOSTILE)])
    text = anchor("names", "run1", "--store", tmp_path).out
    assert "\\x1b[31mfc\\n\\u202e<b>" in text
    assert text.isascii()
    assert text.count("\n") == 2
    done = anchor("names", "run1", "--store", tmp_path, "--json")
    assert done.out.isascii()
    assert done.json[0]["name"] == HOSTILE


def test_a_hostile_selector_is_escaped_in_the_error(tmp_path):
    make_run(tmp_path, [record(HOSTILE)])
    done = anchor("names", "run1", "\x1b]0;x\x07\n", "--store", tmp_path)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err


def test_ranks_are_shown_as_spans():
    assert spans((0, 1, 2, 3, 8)) == "0-3,8"
    assert spans((5,)) == "5"
    assert spans(()) == ""


def test_a_narrow_terminal_tells_names_apart(tmp_path, monkeypatch):
    names_of = [f"conv{n}.weight" for n in (1, 2)]
    make_run(tmp_path, [record(name, "pass_grad", WEIGHT) for name in names_of])
    for width in (44, 48, 80):
        monkeypatch.setattr(names, "this_screen", lambda width=width: Screen(width, glyphs=True))
        lines = anchor("names", "run1", "--store", tmp_path).out.splitlines()
        assert max(map(len, lines)) <= width
        assert len({line.split()[0] for line in lines}) == 3
    assert [line.split()[0] for line in lines[1:]] == names_of


def test_what_ends_a_step_is_told_on_a_terminal(tmp_path, monkeypatch):
    with Writer.open(tmp_path, "run1", 0, header={"steps.ended_by": "Adam of \x1b[1m"}) as writer:
        put(writer, [record()])
    assert "ended by" not in anchor("names", "run1", "--store", tmp_path).out
    monkeypatch.setattr(names, "this_screen", lambda: Screen(80))
    for form in ([], ["--tree"]):
        done = anchor("names", "run1", "--store", tmp_path, *form)
        assert done.out.splitlines()[-1] == r"steps ended by Adam of \x1b[1m"


def test_a_live_run_is_read_too(tmp_path):
    make_run(tmp_path, [record()], close=False)
    assert "fc2.bias" in anchor("names", "run1", "--store", tmp_path).out


def test_runs_are_listed_with_what_they_hold(tmp_path):
    two_ranks(tmp_path)
    make_run(tmp_path, [record(step=4)], run="live", close=False)
    done = anchor("runs", "--store", tmp_path)
    head, *lines = done.out.splitlines()
    assert head.split() == [
        "name",
        "state",
        "ranks",
        "steps",
        "tensors",
        "bytes",
        "when",
        "written",
    ]
    assert [line.split()[:6] for line in lines] == [
        ["live", "open", "0", "1", "1", "16"],
        ["run1", "closed", "0-1", "2", "3", "82"],
    ]


def test_runs_as_json(tmp_path):
    two_ranks(tmp_path)
    (run,) = anchor("runs", "--store", tmp_path, "--json").json
    when, written = run.pop("when"), run.pop("written")
    assert run == {
        "name": "run1",
        "state": "closed",
        "ranks": [0, 1],
        "steps": 2,
        "tensors": 3,
        "bytes": 82,
        "gaps": 0,
    }
    assert when.endswith("+00:00")
    assert written >= when


def test_an_empty_store_has_no_runs(tmp_path):
    assert anchor("runs", "--store", tmp_path, "--json").json == []
    assert anchor("runs", "--store", tmp_path).code == 0


def test_a_folder_that_only_looks_like_a_run_does_not_hide_the_others(tmp_path):
    make_run(tmp_path, [record()])
    (tmp_path / "broken.zarr" / "rank0").mkdir(parents=True)
    (tmp_path / "folder.zarr").mkdir()
    done = anchor("runs", "--store", tmp_path, "--json")
    assert [run["name"] for run in done.json] == ["run1"]
    assert done.code == 3
    assert done.err.startswith("anchor: broken cannot be read")


class TestGaps:
    """What was lost is told where a run is listed."""

    LINE_FULL = ("line full", 3, 4, 6)

    def make(self, store):
        gaps = [
            Gap("fc2.bias", "grad", "all", *self.LINE_FULL),
            Gap("fc2.bias", "grad", "", "not dense", 2, 1, 1),
            Gap("fc3\x1b", "grad", "", "line full", 1, 7, 7),
        ]
        make_run(store, [record(), record("loss", "value")], gaps=gaps)
        make_run(store, [record()], run="whole")

    def test_names_have_a_column_for_them(self, tmp_path):
        self.make(tmp_path)
        done = anchor("names", "run1", "--store", tmp_path)
        assert done.code == 0
        assert [line.split()[-1] for line in done.out.splitlines()] == ["gaps", "5", "0"]
        told = anchor("names", "run1", "--store", tmp_path, "--json").json
        assert [(one["name"], one["gaps"]) for one in told] == [("fc2.bias", 5), ("loss", 0)]

    def test_a_whole_run_has_no_such_column(self, tmp_path):
        self.make(tmp_path)
        done = anchor("names", "whole", "--store", tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "gaps" not in done.out

    def test_a_tensor_without_any_record_is_told_in_one_line(self, tmp_path):
        self.make(tmp_path)
        said = "anchor: fc3\\x1b@grad has no record: lost at step 7 (line full)\n"
        for selectors in ([], ["*"], ["loss", "fc3*"]):
            done = anchor("names", "run1", *selectors, "--store", tmp_path)
            assert (done.code, done.err) == (0, said)
        assert anchor("names", "run1", "fc2*", "--store", tmp_path).err == ""
        alone = anchor("names", "run1", "fc3*", "--store", tmp_path, "--json")
        assert (alone.code, alone.json, alone.err) == (0, [], said)
        assert anchor("names", "run1", "fc4*", "--store", tmp_path).code == 2

    def test_many_of_them_are_counted(self, tmp_path):
        gaps = [Gap(f"t{n}", "grad", "", *self.LINE_FULL) for n in range(9)]
        make_run(tmp_path, [record()], gaps=gaps)
        done = anchor("names", "run1", "--store", tmp_path)
        assert done.err.count("\n") == 1
        assert "t4@grad has no record: lost at steps 4-6 (line full); 4 more have none" in done.err

    def test_runs_have_a_column_for_them_and_one_line(self, tmp_path):
        self.make(tmp_path)
        done = anchor("runs", "--store", tmp_path)
        assert [line.split()[-1] for line in done.out.splitlines()] == ["gaps", "6", "0"]
        said = "anchor: run1 has no record of 1 tensor: see `anchor names RUN`\n"
        assert (done.code, done.err) == (0, said)
        told = anchor("runs", "--store", tmp_path, "--json")
        assert [run["gaps"] for run in told.json] == [6, 0]
        assert (told.code, told.err) == (0, said)


def test_a_tree_has_a_line_a_name_with_its_kinds_below_its_module(tmp_path):
    make_run(
        tmp_path,
        [
            record("block.0.fc", "value", WEIGHT),
            record("block.0.fc.weight", "grad", WEIGHT),
            record("block.0.fc.weight", "delta", WEIGHT, step=1),
            record("block.0.norm", "value", WEIGHT),
            record("loss", "value", np.float32([1]).reshape(())),
        ],
    )
    assert anchor("names", "run1", "--tree", "--store", tmp_path).out == (
        "name        kinds       dtype    shape  records\n"
        "block.0\n"
        "  fc        value       float32  2x3          1\n"
        "    weight  grad delta  float32  2x3          2\n"
        "  norm      value       float32  2x3          1\n"
        "loss        value       float32  ()           1\n"
    )
    entries = anchor("names", "run1", "--store", tmp_path, "--json").json
    drawn = [
        line.partition(" v")[0].rstrip() for line in name_tree.lines(entries, Screen(80, True))
    ]
    assert drawn[1:] == [
        "block.0",
        "├─ fc",
        "│  └─ weight  grad delta  float32  2x3          2",
        "└─ norm",
        "loss",
    ]


def test_every_name_stands_in_the_tree(tmp_path):
    make_run(tmp_path, [record(name) for name in ("a", "a.b", "a..c", ".", HOSTILE, "x.y.z")])
    text = anchor("names", "run1", "--tree", "--store", tmp_path).out
    assert text.isascii()
    assert sum("grad" in line for line in text.splitlines()) == 6
