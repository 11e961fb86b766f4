"""`anchor stats`: the summary columns."""

from __future__ import annotations

import numpy as np
import pytest

from anchor_cli.commands import stats
from anchor_cli.terminal import Screen
from anchorlib.record import Flag, Gap
from anchorlib.summary import summarise
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record

COLUMNS = {
    "step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest",
    "zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2", "flags", "scale",
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    nothing = np.float32([np.nan, np.inf])
    make_run(tmp_path, [record(), record(raw=nothing, step=1), record("fc1.bias", step=1)])
    return tmp_path


def test_json_has_every_column_and_where_it_is_from(store):
    done = anchor("stats", "run1", "--store", store, "-t", "fc2.bias", "--json")
    first, second = done.json
    assert set(first) == COLUMNS | {"tensor", "kind", "mode", "rank"}
    assert (first["tensor"], first["kind"], first["mode"], first["rank"]) == (
        "fc2.bias", "grad", "all", 0,
    )  # fmt: skip
    assert first["digest"] == summarise(BIAS, "float32").digest.hex()
    assert (first["min"], first["max"], first["sum"], first["zero"]) == (-0.25, 3.0, 3.25, 1)
    assert (second["nan"], second["inf"], second["step"]) == (1, 1, 1)


@pytest.mark.parametrize(("text", "steps"), [("-1", [1]), ("-2:", [0, 1]), (":-1", [0])])
def test_negative_steps_count_from_the_last(store, text, steps):
    done = anchor("stats", "run1", "--store", store, "-t", "fc2.bias", "--step", text, "--json")
    assert [row["step"] for row in done.json] == steps


def test_figures_without_a_finite_element_are_null(store):
    done = anchor("stats", "run1", "--store", store, "-t", "fc2.bias", "--step", "1", "--json")
    assert [done.json[0][name] for name in ("min", "max", "sum", "l2")] == [None] * 4


def test_a_pipe_has_every_column_and_exact_figures(store):
    done = anchor("stats", "run1", "--store", store, "-t", "fc2.bias")
    head, first, _ = done.out.splitlines()
    assert head.split() == [
        "step", "pass", "call", "rank", "phase", "min", "max", "sum", "l2", "zero", "nan", "inf",
        "subnormal", "count", "attempt", "order", "time_ns", "digest", "flags", "scale",
    ]  # fmt: skip
    cells = dict(zip(head.split(), first.split(), strict=True))
    assert float(cells["l2"]) == summarise(BIAS, "float32").l2
    assert cells["time_ns"] == "1700000000000000000"


def test_several_tensors_are_told_apart(store):
    done = anchor("stats", "run1", "--store", store, "-t", "*")
    assert [line.split()[0] for line in done.out.splitlines()] == [
        "tensor", "fc2.bias@grad", "fc2.bias@grad", "fc1.bias@grad",
    ]  # fmt: skip


def test_a_narrow_terminal_keeps_the_figures(store, monkeypatch):
    monkeypatch.setattr(stats, "this_screen", lambda: Screen(70))
    lines = anchor("stats", "run1", "--store", store, "-t", "fc2.bias").out.splitlines()
    assert max(map(len, lines)) <= 70
    assert {"step", "min", "max", "l2", "zero", "nan", "inf"} <= set(lines[0].split())


@pytest.fixture
def scaled(tmp_path):
    """What GradScaler leaves: a step that it skipped, and a lower scale after it."""
    amp = {"kind": "pass_grad", "flags": Flag.SCALED, "scale": 65536.0}
    skipped = {**amp, "raw": np.float32([np.inf] * 4), "flags": Flag.SCALED | Flag.STEP_SKIPPED}
    later = {**amp, "scale": 32768.0, "step": 2}
    make_run(tmp_path, [record(**amp), record(**skipped, step=1), record(**later)])
    return tmp_path


def test_a_skipped_step_and_a_loss_scale_are_seen(scaled, monkeypatch):
    where = ("stats", "run1", "--store", scaled, "-t", "fc2.bias")
    rows = anchor(*where, "--json").json
    assert [(row["flags"], row["scale"]) for row in rows] == [
        ("scaled", 65536.0), ("skipped,scaled", 65536.0), ("scaled", 32768.0),
    ]  # fmt: skip
    told = [line.split()[-2:] for line in anchor(*where).out.splitlines()]
    assert told[:3] == [["flags", "scale"], ["scaled", "65536.0"], ["skipped,scaled", "65536.0"]]
    monkeypatch.setattr(stats, "this_screen", lambda: Screen(80))
    lines = anchor(*where).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[-2:] for line in lines[1:]] == [
        ["scaled", "65536"], ["skipped,scaled", "65536"], ["scaled", "32768"],
    ]  # fmt: skip


def test_people_see_no_column_that_says_nothing(store, monkeypatch):
    monkeypatch.setattr(stats, "this_screen", lambda: Screen(80))
    head = anchor("stats", "run1", "--store", store, "-t", "fc2.bias").out.splitlines()[0]
    assert "l2" in head
    assert not {"pass", "rank", "phase", "flags", "scale"} & set(head.split())


def test_eighty_columns_hold_what_people_read_and_all_shows_the_rest(tmp_path, monkeypatch):
    name = "bert.encoder.layer.{}.attention.self.query.weight"
    large = np.float32([-1.2345e-38, 3.4e38, -0.0])
    rows = [
        record(name.format(n), raw=large, step=10_000, pass_index=n, call=n, phase="eval")
        for n in range(10)
    ]
    make_run(tmp_path, rows)
    monkeypatch.setattr(stats, "this_screen", lambda: Screen(80, glyphs=True))
    where = ("stats", "run1", "--store", tmp_path, "-t", "*")
    head, *lines = anchor(*where).out.splitlines()
    assert max(map(len, [head, *lines])) <= 80
    assert {"tensor", "step", "min", "max", "l2", "nan", "inf"} <= set(head.split())
    assert not {"time_ns", "digest", "order", "sum"} & set(head.split())
    assert len({line.split()[0] for line in lines}) == 10
    assert all(f"{n}…query.weight@grad" in line for n, line in enumerate(lines))
    everything = anchor(*where, "--all").out.splitlines()
    assert {"time_ns", "digest", "order", "sum", "flags"} <= set(everything[0].split())
    assert name.format(7) in everything[8]


def test_hostile_names_and_phases_reach_no_terminal(tmp_path):
    make_run(tmp_path, [record(HOSTILE, phase="\x1b[1m"), record("x")])
    done = anchor("stats", "run1", "--store", tmp_path, "-t", "*")
    assert done.out.isascii()
    assert "\x1b" not in done.out


def test_missing_records_are_exit_3(store):
    gap = Gap("fc2.bias", "grad", "all", "line full", 2, 3, 4)
    make_run(store, [record()], run="gappy", gaps=[gap])
    done = anchor("stats", "gappy", "--store", store, "-t", "fc2.bias", "--json")
    assert (done.code, len(done.json)) == (3, 1)
    assert "lacks 2 records of steps 3-4 (line full)" in done.err


def test_people_see_ranks_with_the_same_bits_in_one_line(tmp_path, monkeypatch):
    for rank in range(5):
        raw = BIAS if rank != 3 else BIAS + np.float32(1)
        make_run(tmp_path, [record(raw=raw, rank=rank)], rank=rank)
    monkeypatch.setattr(stats, "this_screen", lambda: Screen(80))
    head, alike, other = anchor("stats", "run1", "--store", tmp_path, "-t", "*").out.splitlines()
    at = head.split().index("rank")
    assert [line.split()[at] for line in (alike, other)] == ["0-2,4", "3"]
    told = anchor("stats", "run1", "--store", tmp_path, "-t", "*", "--all").out.splitlines()
    assert len(told) == 6
