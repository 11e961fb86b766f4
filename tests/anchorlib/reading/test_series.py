"""A series gives its records, in order of execution, exactly as they were made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anchorlib.dtypes import DTYPES, decode
from anchorlib.errors import (
    AmbiguousTensorError,
    RaggedError,
    UnknownTensorError,
    ValuesNotKeptError,
)
from anchorlib.reading import open_run
from anchorlib.record import Coordinates, Flag
from anchorlib.store import RankReader, Writer
from anchorlib.summary import Log2Histogram, log2_histogram
from tests.anchorlib.reading.runs import make_run
from tests.anchorlib.store.records import filled, floats, record, written
from tests.writing import put

NAMES = ["step", "pass_index", "call", "phase", "attempt", "order", "time_ns", "count", "digest"]
NAMES += ["zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2", "flags", "scale"]


def test_columns_hold_one_entry_per_record(tmp_path: Path) -> None:
    raws = [floats(0, 1, float("nan")), floats(float("inf"), 2, -4), floats(1e-40, 0, 0)]
    records = [
        record("x", step, raw, pass_index=1, call=2, phase="eval") for step, raw in enumerate(raws)
    ]
    written(tmp_path, records)
    columns = open_run("run1", tmp_path)["x"].columns
    assert list(columns) == NAMES
    assert all(len(columns[name]) == 3 for name in NAMES)
    assert columns["step"].tolist() == [0, 1, 2]
    assert columns["pass_index"].tolist() == [1] * 3
    assert columns["call"].tolist() == [2] * 3
    assert columns["phase"].tolist() == ["eval"] * 3
    assert columns["attempt"].tolist() == [0] * 3
    assert columns["count"].tolist() == [1] * 3
    assert columns["time_ns"].tolist() == [one.time_ns for one in records]
    assert columns["zero"].tolist() == [1, 0, 2]
    assert columns["nan"].tolist() == [1, 0, 0]
    assert columns["inf"].tolist() == [0, 1, 0]
    assert columns["subnormal"].tolist() == [0, 0, 1]
    assert columns["min"].tolist()[:2] == [0.0, -4.0]
    assert columns["max"].tolist()[:2] == [1.0, 2.0]
    assert columns["sum"].tolist()[:2] == [1.0, -2.0]
    assert columns["l2"].tolist()[1] == pytest.approx(np.sqrt(20))
    for digest, one in zip(columns["digest"], records, strict=True):
        assert one.summary is not None
        assert digest == one.summary.digest.hex()
        assert len(digest) == 32
    with pytest.raises(KeyError):
        columns["no_such_column"]


def test_columns_say_what_else_is_true_of_a_record(tmp_path: Path) -> None:
    flags = [Flag.NONE, Flag.STEP_SKIPPED | Flag.SCALED, Flag.SCALED]
    scales = [1.0, 65536.0, 32768.0]
    written(
        tmp_path,
        [
            replace(record("x", step, floats(step)), flags=flag, scale=scale)
            for step, (flag, scale) in enumerate(zip(flags, scales, strict=True))
        ]
        + [record("x", 3, floats(3), values=False)],
    )
    columns = open_run("run1", tmp_path)["x"].columns
    assert columns["flags"].tolist() == ["", "skipped,scaled", "scaled", "values dropped"]
    assert columns["scale"].tolist() == [*scales, 1.0]
    nothing = open_run("run1", tmp_path)["x"].where(steps=[77]).columns
    assert (nothing["flags"].tolist(), nothing["scale"].tolist()) == ([], [])
    assert nothing["flags"].dtype.kind == "U"


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_decoded_and_to_torch_is_the_recorded_dtype(dtype: str, tmp_path: Path) -> None:
    raws = [filled(dtype, (3, 5), step) for step in range(3)]
    written(tmp_path, [record("x", step, raw, dtype=dtype) for step, raw in enumerate(raws)])
    series = open_run("run1", tmp_path)["x"]
    values = series.values()
    expected = decode(np.stack(raws), dtype)
    assert (values.shape, values.dtype) == ((3, 3, 5), expected.dtype)
    assert values.tobytes() == expected.tobytes()
    tensor = series.to_torch()
    assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, dtype), (3, 3, 5))
    bits = tensor.view(torch.uint8) if dtype != "bool" else tensor
    assert bits.numpy().tobytes() == np.stack(raws).tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_tensors_stack_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    raws = [filled("bfloat16", shape, step) for step in range(3)]
    written(tmp_path, [record("x", s, raw, dtype="bfloat16") for s, raw in enumerate(raws)])
    series = open_run("run1", tmp_path)["x"]
    assert series.values().shape == (3, *shape)
    assert tuple(series.to_torch().shape) == (3, *shape)
    assert series.to_torch().dtype == torch.bfloat16


def test_records_come_in_order_of_execution_whatever_order_they_arrived_in(tmp_path: Path) -> None:
    records = [record("x", step, floats(step), order=step) for step in (3, 0, 2, 1)]
    written(tmp_path, records)
    series = open_run("run1", tmp_path)["x"]
    assert series.columns["step"].tolist() == [0, 1, 2, 3]
    assert series.values()[:, 0].tolist() == [0, 1, 2, 3]
    assert [one.order for one in series.records()] == [0, 1, 2, 3]


def test_a_record_comes_back_whole(tmp_path: Path) -> None:
    made = replace(
        record("x", 4, filled("float16", (2, 2)), dtype="float16", pass_index=1, phase="eval"),
        count=3,
        scale=65536.0,
        flags=Flag.SCALED,
        order=17,
    )
    written(tmp_path, [made], rank=2)
    found = open_run("run1", tmp_path)["x"].at(step=4, pass_index=1)
    for name in ("name", "kind", "mode", "coordinates", "order", "time_ns", "dtype", "shape"):
        assert getattr(found, name) == getattr(made, name)
    assert (found.count, found.scale, found.flags, found.rank) == (3, 65536.0, Flag.SCALED, 2)
    assert made.raw is not None
    assert found.raw is not None
    assert found.raw.tobytes() == made.raw.tobytes()
    assert found.array.dtype == np.float16


def test_a_series_iterates_over_its_records_reading_each_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, [record("x", n, filled("float32", (2,), n)) for n in range(5)])
    series = open_run("run1", tmp_path)["x"]
    read = []
    raw = RankReader.raw
    monkeypatch.setattr(RankReader, "raw", lambda self, row: read.append(row) or raw(self, row))
    for count, one in enumerate(series, start=1):
        assert one.coordinates.step == count - 1
        assert len(read) == count
    assert [one.order for one in series] == [one.order for one in series.records()]
    assert len(list(series.where(steps=[1, 3]))) == 2
    assert len(series) == 5


def test_records_carry_their_summaries_when_asked(tmp_path: Path) -> None:
    made = [record("x", n, filled("float32", (n + 1,), n), values=n != 1) for n in range(3)]
    written(tmp_path, made)
    series = open_run("run1", tmp_path)["x"]
    assert [one.summary for one in series.records(summaries=True)] == [one.summary for one in made]
    assert [one.summary is None for one in series.records()] == [True, False, True]


def test_ragged_records_are_refused_as_one_array_and_given_one_by_one(tmp_path: Path) -> None:
    raws = [filled("float32", (1 + step, 2), step) for step in range(20)]
    written(tmp_path, [record("x", step, raw) for step, raw in enumerate(raws)])
    series = open_run("run1", tmp_path)["x"]
    with pytest.raises(RaggedError, match="20 shapes"):
        series.values()
    for one, raw in zip(series.records(), raws, strict=True):
        assert one.array.tobytes() == raw.tobytes()
    assert series.shapes == [raw.shape for raw in raws]
    assert series.where(steps=[12]).values().tobytes() == raws[12].tobytes()


def test_a_dtype_that_changes_is_ragged_too(tmp_path: Path) -> None:
    records = [record("x", n, filled(d, (2,)), dtype=d) for n, d in enumerate(("float32", "int8"))]
    written(tmp_path, records)
    with pytest.raises(RaggedError, match="float32"):
        open_run("run1", tmp_path)["x"].values()


def test_a_summary_has_no_values_and_says_so(tmp_path: Path) -> None:
    raws = [floats(1, 2, step) for step in range(3)]
    written(tmp_path, [record("x", n, raw, mode="summary") for n, raw in enumerate(raws)])
    series = open_run("run1", tmp_path)["x"]
    with pytest.raises(ValuesNotKeptError, match="summaries only"):
        series.values()
    with pytest.raises(ValuesNotKeptError, match="step 1"):
        series.at(step=1).array  # noqa: B018 - reading it is the test
    assert series.columns["sum"].tolist() == [3, 4, 5]
    assert series.histogram() == log2_histogram(np.stack(raws))


def test_values_that_were_dropped_are_counted_in_the_error(tmp_path: Path) -> None:
    written(tmp_path, [record("x", n, floats(n), values=n % 4 != 0) for n in range(10)])
    series = open_run("run1", tmp_path)["x"]
    with pytest.raises(ValuesNotKeptError, match="3 of 10 records"):
        series.values()
    assert series.where(steps=range(1, 4)).values().tolist() == [[1], [2], [3]]
    assert [one.raw is None for one in series.records()] == [n % 4 == 0 for n in range(10)]
    assert series.at(step=4).flags == Flag.VALUE_DROPPED


def test_at_gives_one_record_or_says_what_there_is(tmp_path: Path) -> None:
    series = open_run("run1", make_run(tmp_path))["fc1"]
    assert series.at(step=2, pass_index=1).array.tolist() == np.full((2, 3), 21.0).tolist()
    assert series.at(step=2).coordinates == Coordinates(2)
    with pytest.raises(UnknownTensorError, match=r"step 9.*steps 0 to 2"):
        series.at(step=9)


def test_phases_at_one_coordinate_are_told_apart(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(n), phase=p) for n, p in enumerate(("train", "eval"))])
    series = open_run("run1", tmp_path)["x"]
    with pytest.raises(AmbiguousTensorError, match=r"eval, train.*phase="):
        series.at(step=0)
    assert series.at(step=0, phase="eval").array.tolist() == [1.0]


def test_where_narrows_by_every_coordinate(tmp_path: Path) -> None:
    series = open_run("run1", make_run(tmp_path))["fc1"]
    assert series.where(steps=range(1, 3), pass_index=1).columns["step"].tolist() == [1, 2]
    assert series.where(steps=range(0, 3, 2)).columns["step"].tolist() == [0, 0, 2, 2]
    assert len(series.where(phase="eval")) == len(series.where(call=1)) == 0
    assert len(series.where()) == len(series)


def test_the_last_attempt_of_a_coordinate_is_seen(tmp_path: Path) -> None:
    # The first attempt came to step 3; the second began again at step 2, and repeats a call.
    attempts = [[0, 1, 2, 3], [2, 2, 3, 4]]
    for number, steps in enumerate(attempts):
        with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
            put(
                writer,
                [record("x", step, floats(number), order=n) for n, step in enumerate(steps)]
                + [record("once", step, floats(number), order=9) for step in steps[:1]],
            )
    run = open_run("run1", tmp_path)
    series = run["x"]
    assert series.columns["step"].tolist() == [0, 1, 2, 2, 3, 4]
    assert series.columns["attempt"].tolist() == [0, 0, 1, 1, 1, 1]
    assert series.values()[:, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert len(run["once"]) == 2
    assert run.tensors("x")[0].records == 6
    every = run.series("x", "grad", attempts=True)
    assert every.columns["step"].tolist() == [0, 1, 2, 3, 2, 2, 3, 4]
    assert every.columns["order"].tolist() == sorted(every.columns["order"].tolist())


@pytest.mark.slow
def test_xarray_gets_values_with_their_coordinates(tmp_path: Path) -> None:
    data = open_run("run1", make_run(tmp_path))["fc1"].to_xarray()
    assert data.dims == ("record", "d0", "d1")
    assert data.name == "fc1@value"
    assert data["step"].values.tolist() == [0, 0, 1, 1, 2, 2]
    assert data["pass_index"].values.tolist() == [0, 1] * 3
    assert {"call", "phase", "attempt", "order", "time_ns", "count"} <= set(data.coords)
    assert data[3].values.tolist() == np.full((2, 3), 11.0).tolist()


def test_a_series_that_is_narrowed_to_nothing_says_so(tmp_path: Path) -> None:
    series = open_run("run1", make_run(tmp_path))["fc1"].where(steps=[77])
    assert len(series) == 0
    assert list(series.records()) == []
    assert series.histogram() == Log2Histogram()
    with pytest.raises(UnknownTensorError, match="no record"):
        series.values()


def test_one_record_is_counted_as_one(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1)), record("y", 0, floats(1))])
    series = open_run("run1", tmp_path)["x"]
    assert repr(series).endswith(", 1 record)")
    assert repr(series.where(steps=[9])).endswith(", 0 records)")
    assert repr(series.columns).endswith("; 1 record)")


def test_names_are_escaped_where_they_are_shown(tmp_path: Path) -> None:
    written(tmp_path, [record("a\x1b[31m", 0, floats(1))])
    run = open_run("run1", tmp_path)
    series = run["a\x1b[31m"]
    assert series.name == "a\x1b[31m"
    for shown in (repr(series), str(series)):
        assert "\x1b" not in shown
        assert "x1b" in shown
    with pytest.raises(UnknownTensorError) as refusal:
        run["b\x1b[31m"]
    assert "\x1b" not in str(refusal.value)
