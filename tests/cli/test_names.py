"""`anchor names` and `anchor runs`."""

from __future__ import annotations

import numpy as np

from anchor_cli.names import spans
from tests.cli.made import HOSTILE, anchor, make_run, record

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


def test_a_live_run_is_read_too(tmp_path):
    make_run(tmp_path, [record()], close=False)
    assert "fc2.bias" in anchor("names", "run1", "--store", tmp_path).out


def test_runs_are_listed_with_what_they_hold(tmp_path):
    two_ranks(tmp_path)
    make_run(tmp_path, [record(step=4)], run="live", close=False)
    done = anchor("runs", "--store", tmp_path)
    head, *lines = done.out.splitlines()
    assert head.split() == ["name", "state", "ranks", "steps", "tensors", "bytes", "when"]
    assert [line.split()[:6] for line in lines] == [
        ["live", "open", "0", "1", "1", "16"],
        ["run1", "closed", "0-1", "2", "3", "82"],
    ]


def test_runs_as_json(tmp_path):
    two_ranks(tmp_path)
    (run,) = anchor("runs", "--store", tmp_path, "--json").json
    when = run.pop("when")
    assert run == {
        "name": "run1",
        "state": "closed",
        "ranks": [0, 1],
        "steps": 2,
        "tensors": 3,
        "bytes": 82,
    }
    assert when.endswith("+00:00")


def test_an_empty_store_has_no_runs(tmp_path):
    assert anchor("runs", "--store", tmp_path, "--json").json == []
    assert anchor("runs", "--store", tmp_path).code == 0


def test_a_folder_that_only_looks_like_a_run_does_not_hide_the_others(tmp_path):
    make_run(tmp_path, [record()])
    (tmp_path / "broken.zarr").mkdir()
    done = anchor("runs", "--store", tmp_path, "--json")
    assert [run["name"] for run in done.json] == ["run1"]
    assert done.code == 3
    assert done.err.startswith("anchor: broken cannot be read")
