"""`anchor export`: what other tools read back."""

from __future__ import annotations

import csv
import io
import math
import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import xarray
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from anchor_cli.records.sheets import harmless
from anchorlib.reading import open_run
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record

SCALAR = np.float32(0.5).reshape(())


def read(folder):
    everything = dict.fromkeys(("scalars", "histograms"), 0)  # it samples otherwise
    found = EventAccumulator(str(folder), size_guidance=everything)
    found.Reload()
    return found


def numbers(found, tag):
    return [(one.step, one.value) for one in found.Scalars(tag)]


@pytest.fixture
def store(tmp_path):
    records = [
        one
        for step in range(3)
        for one in (
            record("loss", "value", SCALAR * (step + 1), step=step, time_ns=10**9 * (step + 7)),
            record("fc2.bias", "grad", BIAS * 2**step, step=step),
            record("h", "value", BIAS, step=step, pass_index=0),
            record("h", "value", BIAS, step=step, pass_index=1, call=2),
        )
    ]
    make_run(tmp_path / "anchors", records)
    return tmp_path / "anchors"


def test_tensorboard_reads_back_every_step_of_numbers_and_norms(store, tmp_path):
    done = anchor("export", "run1", "--tensorboard", tmp_path / "tb", "--store", store)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("12 records of run1 in ")
    assert done.out.endswith(f"tensorboard --logdir {tmp_path / 'tb'}\n")
    found = read(tmp_path / "tb" / "run1")
    assert numbers(found, "value/loss") == [(0, 0.5), (1, 1.0), (2, 1.5)]
    assert [one.wall_time for one in found.Scalars("value/loss")] == [7.0, 8.0, 9.0]
    norm = float(np.linalg.norm(BIAS))
    norms = dict(numbers(found, "grad l2/fc2.bias"))
    assert norms == pytest.approx({step: norm * 2**step for step in range(3)})
    assert {tag for tag in found.Tags()["scalars"] if tag.startswith("value l2/h")} == {
        "value l2/h pass 0 call 0",
        "value l2/h pass 1 call 2",
    }


def test_tensorboard_reads_back_the_log2_bins(store, tmp_path):
    anchor("export", "run1", "-t", "fc2.bias", "--tensorboard", tmp_path, "--store", store)
    found = read(tmp_path / "run1")
    assert found.Tags()["histograms"] == ["grad log2/fc2.bias"]
    first, _, last = found.Histograms("grad log2/fc2.bias")
    # BIAS is 0, 1/2, -1/4 and 3: one element each in 2^-2, 2^-1 and 2^1, none in 2^0.
    bins = first.histogram_value
    assert (bins.min, bins.max, bins.num) == (-2, 2, 3)
    assert list(zip(bins.bucket_limit, bins.bucket, strict=True)) == [
        (-1, 1), (0, 1), (1, 0), (2, 1),
    ]  # fmt: skip
    assert (last.step, last.histogram_value.min) == (2, 0)


def test_what_is_not_finite_stays_so(tmp_path):
    values = [np.nan, -np.inf, 1.0]
    make_run(
        tmp_path,
        [
            record("loss", "value", np.float32(value).reshape(()), step=step)
            for step, value in enumerate(values)
        ],
    )
    anchor("export", "run1", "--tensorboard", tmp_path / "tb", "--store", tmp_path)
    found = [value for _, value in numbers(read(tmp_path / "tb" / "run1"), "value/loss")]
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, 1.0]


def test_ranks_are_runs_of_their_own_and_a_second_export_takes_the_firsts_place(store, tmp_path):
    make_run(store, [record(step=9)], rank=3)
    for _ in range(2):
        said = anchor("export", "run1", "--tensorboard", tmp_path, "--store", store, "--json").json
    assert said["scalars"] == 13
    assert said["histograms"] == 10
    assert [one.step for one in read(tmp_path / "run1" / "rank3").Scalars("grad l2/fc2.bias")] == [
        9
    ]
    assert len(list((tmp_path / "run1" / "rank0").iterdir())) == 1


def test_without_tensorboard_it_says_what_to_install(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    done = anchor("export", "run1", "--tensorboard", tmp_path / "tb", "--store", store)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "pip install 'anchorlib[tensorboard]'" in done.err


def test_csv_and_parquet_hold_what_stats_shows(store, tmp_path):
    parquet = tmp_path / "run1.parquet"
    where = ("--store", store, "--step", "1:")
    done = anchor("export", "run1", "--csv", "-", "--parquet", parquet, *where)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    table = pyarrow.parquet.read_table(parquet).to_pylist()
    stats = anchor("stats", "run1", "-t", "*", "--json", *where).json
    assert table == stats
    assert [{**row, "l2": float(row["l2"])} for row in rows] == [
        {**{key: str(value) for key, value in row.items()}, "l2": row["l2"]} for row in stats
    ]


def test_options_narrow_what_is_exported(store):
    where = ("export", "run1", "--csv", "-", "--store", store)
    lines = anchor(*where, "--pass", 1, "--step", "2").out.splitlines()
    assert len(lines) == 2
    assert anchor(*where, "--pass", 7).err == "anchor: run1 has no record there --pass 7\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--tensorboard DIR, --wandb DIR, --mlflow DIR, --zarr DIR, --csv FILE or"),
        (("--csv", "-", "--json"), "both go to stdout"),
        (("--csv", "x.csv", "-t", "fc2.bais"), "did you mean 'fc2.bias'"),
        (("--tensorboard", "/dev/null/x"), "cannot make /dev/null/x"),
    ],
)
def test_what_cannot_be_exported_is_one_line(store, options, said):
    done = anchor("export", "run1", *options, "--store", store)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


def test_a_hostile_name_is_exported_escaped_to_tensorboard_and_exactly_to_csv(tmp_path):
    make_run(tmp_path, [record(HOSTILE)])
    done = anchor("export", "run1", "--tensorboard", tmp_path, "--csv", tmp_path / "x.csv",
                  "--store", tmp_path)  # fmt: skip
    assert done.code == 0
    (tag,) = read(tmp_path / "run1").Tags()["scalars"]
    assert tag.isprintable()
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["tensor"] == HOSTILE


@pytest.mark.slow
def test_zarr_reads_back_every_tensor_of_an_export_as_an_array_of_its_own(store, tmp_path):
    place = tmp_path / "out" / "run1.tensors.zarr"
    for _ in range(2):  # the second takes the place of the first
        done = anchor("export", "run1", "--store", store, "--zarr", place, "--json")
        assert (done.code, done.err, done.json["zarr"]) == (0, "", str(place))
    run = open_run("run1", store)
    there, view = zarr.open_group(place, mode="r"), zarr.open_group(run.zarr(), mode="r")
    members = dict(there.members(None))
    assert set(members) == {path for path, _ in view.members(None)}
    for path, node in members.items():
        assert node.attrs.asdict() == view[path].attrs.asdict()
        if isinstance(node, zarr.Array):
            assert node[...].tobytes() == view[path][...].tobytes()
    data = xarray.open_zarr(place, group="rank0/tensors/h/value", consolidated=False)
    assert data["pass_index"].values.tolist() == [0, 1] * 3
    assert done.json["arrays"] == sum(path.split("/")[-1].startswith("value") and isinstance(
        node, zarr.Array) for path, node in members.items())  # fmt: skip
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_an_export_of_some_tensors_and_steps_holds_these_alone(store, tmp_path):
    options = ("--tensor", "fc2.bias@grad", "--step", "1:3", "--zarr", tmp_path / "some")
    assert anchor("export", "run1", "--store", store, *options).code == 0
    tensors = zarr.open_group(tmp_path / "some", mode="r")["rank0/tensors"]
    assert list(tensors) == ["fc2.bias"]
    assert tensors["fc2.bias/grad/step"][:].tolist() == [1, 2]


def test_an_export_takes_the_place_of_nothing_but_an_export(store, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    for place in (tmp_path / "mine", store / "run1.zarr"):
        before = sorted(place.rglob("*"))
        done = anchor("export", "run1", "--store", store, "--zarr", place)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "holds other files" in done.err
        assert sorted(place.rglob("*")) == before


FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "'=1", "'@x"]


@pytest.mark.parametrize("name", FORMULAS)
def test_no_csv_holds_a_cell_that_a_spreadsheet_would_run(tmp_path, name):
    where = ("--store", tmp_path)
    records = [record(name, "grad", -BIAS, step=step, phase=name) for step in range(2)]
    make_run(tmp_path, records, "a")
    make_run(tmp_path, [replace(one, raw=one.raw * 2) for one in records], "b")
    files = [tmp_path / f"{number}.csv" for number in range(4)]
    anchor("export", "a", "--csv", files[0], *where)
    anchor("pull", "a", "-t", "*", "-o", files[1], *where)
    anchor("hist", "a", "-t", "*", "-o", files[2], *where)
    anchor("compare", "a", "b", "--csv", files[3], *where)
    piped = anchor("pull", "a", "-t", "*", "-o", "-", *where).out
    for text in [*(file.read_bytes().decode() for file in files), piped]:
        cells = {cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row}
        texts = {cell for cell in cells if not is_number(cell)}
        assert f"'{name}" in texts
        assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in texts)
    assert any(cell.startswith("-") for cell in cells)  # numbers stay numbers


@given(st.text(st.sampled_from("'=+-@\t\r\n1.a＝")), st.text(st.sampled_from("'=+-@\t\r\n1.a＝")))
def test_texts_that_differ_differ_in_csv_too(one, other):
    assert (harmless(one) == harmless(other)) == (one == other)


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"attributes": {"anchor": 5}}', '{"attributes": []}']
)
def test_a_folder_that_is_no_export_is_left_as_it_is(store, tmp_path, text):
    place = tmp_path / "some"
    place.mkdir()
    (place / "zarr.json").write_text(text)
    done = anchor("export", "run1", "--store", store, "--zarr", place)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "holds other files than an export" in done.err
    assert (place / "zarr.json").read_text() == text
