"""Runs and series at a prompt, in a notebook, in pandas and in xarray."""

from __future__ import annotations

import html.parser
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from anchorlib import open_run
from anchorlib.errors import (
    AmbiguousTensorError,
    CollectorError,
    MissingExtraError,
    OptionError,
    RaggedError,
    UnknownTensorError,
)
from anchorlib.reading import html_table
from anchorlib.reading.tensor_listing import listing
from anchorlib.record import Gap
from anchorlib.store import Writer
from tests.anchorlib.reading.runs import STEPS, make_run, training
from tests.anchorlib.store.records import floats, record
from tests.writing import put

HOSTILE = "\x1b[31mfc\n\u202e<script>alert(1)</script>&"


class Shown(html.parser.HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def run(tmp_path: Path):
    return open_run("run1", make_run(tmp_path))


def test_a_run_says_what_it_holds(run, tmp_path):
    records = STEPS * len(training(0))
    assert repr(run).startswith(f"Run('run1', closed: {records} records of 6 tensors, 1 rank, ")
    assert f", steps 0-{STEPS - 1}, " in repr(run)
    with Writer.open(tmp_path, "live", 0) as writer:
        live = open_run("live", tmp_path)
        assert repr(live) == "Run('live', live: 0 records of 0 tensors, 1 rank, 0 B)"
        put(writer, [record("x", 4, floats(1))])
        writer.gap([Gap("x", "grad", "all", "queue", 3, 0, 1)])
        told = "1 record of 1 tensor, 1 rank, step 4, 4 B, 3 not recorded or without values"
        assert repr(live) == f"Run('live', live: {told})"
        writer.abandon()
    assert repr(live).startswith("Run('live', left open: ")


def test_a_series_says_dtype_shape_steps_and_what_is_not_finite(run, tmp_path):
    series = run["fc1"]
    assert repr(series) == (
        f"Series(fc1@value (mode all, rank 0), float32 2x3, steps 0-{STEPS - 1}, "
        f"{2 * STEPS} records)"
    )
    with Writer.open(tmp_path, "odd", 0) as writer:
        put(writer, [record("x", 0, floats(np.nan, np.inf)), record("x", 1, floats(1))])
    told = repr(open_run("odd", tmp_path)["x"])
    assert told == (
        "Series(x@grad (mode all, rank 0), float32 of several shapes, steps 0-1, 1 nan, 1 inf, "
        "2 records)"
    )


def test_a_notebook_gets_plain_tables(run):
    for shown, heads in ((run, "kind"), (run["fc1"], "pass")):
        page = Shown(shown._repr_html_())
        tags = {tag for tag, _ in page.tags}
        assert tags == {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
        assert all(not attributes for _, attributes in page.tags)
        assert repr(shown) in page.text
        assert heads in page.text
    rows = [tag for tag, _ in Shown(run._repr_html_()).tags].count("tr")
    assert rows == 1 + 6


def test_long_tables_are_cut_and_say_so(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record(f"t{n}", 0, floats(n), order=n) for n in range(25)])
        put(writer, [record("t0", step, floats(1), order=25 + step) for step in range(1, 30)])
    run = open_run("run1", tmp_path)
    assert "and 5 more" in run._repr_html_()
    page = Shown(run["t0"]._repr_html_())
    assert "20 records between them" in page.text
    assert [tag for tag, _ in page.tags].count("tr") == 1 + 10


@pytest.mark.slow
def test_a_run_of_ten_thousand_tensors_shows_itself_without_reading_a_value(tmp_path, monkeypatch):
    with Writer.open(tmp_path, "run1", 0) as writer:
        long = "x" * 900
        put(writer, [record(f"{long}{n}", 0, floats(n), order=n) for n in range(10_000)])
    run = open_run("run1", tmp_path)
    listed = []
    monkeypatch.setattr("anchorlib.store.RankReader.raw", None)
    monkeypatch.setattr("anchorlib.reading.run.listing", counting(listed))
    assert repr(run).startswith("Run('run1', closed: 10,000 records of 10,000 tensors, ")
    text = run._repr_html_()
    assert len(text) < 50_000
    assert "and 9,980 more" in text
    assert len(listed) == 1  # the tensors are gone through once, however often it is shown
    assert len(run[f"{long}7"]._repr_html_()) < 5_000


def counting(calls):
    def listed(*arguments):
        calls.append(arguments)
        return listing(*arguments)

    return listed


def test_hostile_names_are_text_wherever_they_are_shown(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record(HOSTILE, 0, floats(1))])
    run = open_run("run1", tmp_path)
    for text in (run._repr_html_(), run[HOSTILE]._repr_html_(), html_table([HOSTILE], [[HOSTILE]])):
        page = Shown(text)
        assert "script" not in {tag for tag, _ in page.tags}
        assert "<script>alert(1)" in page.text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert repr(run[HOSTILE]).isprintable()


def test_a_run_that_cannot_be_read_now_still_shows_itself(run, monkeypatch):
    def gone(*_):
        raise CollectorError("no collector answers at grpc://there:1")

    monkeypatch.setattr(run._reader, "refresh", gone)
    assert repr(run) == "Run('run1', cannot be read now: no collector answers at grpc://there:1)"


def test_a_series_in_pandas_is_its_columns(run):
    series = run["fc1"]
    frame = series.to_pandas()
    assert list(frame.columns) == list(series.columns)
    assert len(frame) == len(series)
    for name, column in series.columns.items():
        assert frame[name].tolist() == column.tolist()
    by_step = frame.groupby("step")["max"].max()
    assert by_step.tolist() == [10 * step + 1 for step in range(STEPS)]
    assert len(series.where(steps=[99]).to_pandas()) == 0


def test_a_run_in_pandas_is_its_table_of_tensors(run):
    frame = run.to_pandas("*@grad")
    infos = run.tensors("*@grad")
    assert frame["name"].tolist() == [info.name for info in infos]
    assert frame["shape"].tolist() == [info.shape for info in infos]
    assert int(run.to_pandas()["records"].sum()) == STEPS * len(training(0))
    with pytest.raises(UnknownTensorError):
        run.to_pandas("fc9")


def test_a_run_in_xarray_has_a_variable_for_each_tensor(run):
    data = run.to_xarray("fc1", "fc2", "loss")
    assert list(data.data_vars) == ["fc1@value", "fc2@value", "loss@value", "fc2@grad"]
    assert data.attrs == {"run": "run1", "rank": 0}
    assert data["fc1@value"].dims == ("record", "fc1@value d0", "fc1@value d1")
    for name in data.data_vars:
        assert np.array_equal(data[name].values, run[name].values())
    assert data["step"].values.tolist() == [step for step in range(STEPS) for _ in range(2)]
    means = data.groupby("step").mean()
    assert means["fc2@grad"].sizes["step"] == STEPS
    assert data.where(data["pass_index"] == 1, drop=True).sizes["record"] == STEPS


def test_tensors_of_other_coordinates_have_a_dimension_of_their_own_and_nothing_is_filled(run):
    data = run.to_xarray("fc1", "fc2.bias@grad")
    assert data["fc2.bias@grad"].dims[0] == "record_1"
    assert data["step_1"].values.tolist() == list(range(STEPS))
    assert data["fc2.bias@grad"].dtype == np.float32
    assert data["fc1@value"].dims[0] == "record"


def test_a_dataset_holds_one_rank_and_each_mode_is_a_variable(tmp_path):
    run = open_run("run1", make_run(tmp_path, ranks=2))
    with pytest.raises(AmbiguousTensorError, match="rank="):
        run.to_xarray("fc1")
    with pytest.raises(OptionError, match="rank 7"):
        run.to_xarray("fc1", rank=7)
    assert run.to_xarray("fc1", rank=1)["fc1@value"].values[0, 0, 0] == 0
    assert run.to_xarray("fc1", rank=1).attrs["rank"] == 1
    with Writer.open(tmp_path, "modes", 0) as writer:
        put(writer, [record("x", 0, floats(1)), record("x", 0, floats(1), mode="sum")])
    names = list(open_run("modes", tmp_path).to_xarray().data_vars)
    assert names == ["x@grad (all)", "x@grad (sum)"]


def test_shapes_that_differ_are_a_ragged_error_in_xarray_too(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("x", 0, floats(1)), record("x", 1, floats(1, 2))])
    with pytest.raises(RaggedError):
        open_run("run1", tmp_path).to_xarray()


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pandas", lambda run: run.to_pandas()),
        ("pandas", lambda run: run["fc1"].to_pandas()),
        ("xarray", lambda run: run.to_xarray("fc1")),
        ("xarray", lambda run: run["fc1"].to_xarray()),
    ],
    ids=["run-pandas", "series-pandas", "run-xarray", "series-xarray"],
)
def test_what_is_not_installed_is_said_with_the_line_that_installs_it(
    run, monkeypatch, package, call
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"anchorlib\[{package}\]"):
        call(run)


def test_torch_gets_the_same_values(run):
    assert torch.equal(run["fc1"].to_torch(), torch.from_numpy(run["fc1"].values()))
