"""zarr-python, xarray and tensorstore read a run without a word of ours, live and closed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray
import zarr

from anchorlib.dtypes import DTYPES
from anchorlib.record import Record
from anchorlib.store import LocalLocation, Writer, as_zarr
from anchorlib.store.format.layout import FORMS_AT_ONCE
from tests.anchorlib.store.records import filled, floats, reader, record, written
from tests.writing import put

SHAPES = {"matrix": (3, 5), "scalar": (), "large": (70_000,), "empty": (0, 4)}


def records() -> list[Record]:
    return [
        record(name, step, filled("float32", shape, step), pass_index=step % 2)
        for step in range(6)
        for name, shape in SHAPES.items()
    ]


def by_tensorstore(path: Path) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return tensorstore.open(spec, open=True).result().read().result()


@pytest.mark.parametrize("dtype", DTYPES)
def test_zarr_python_and_tensorstore_read_the_bits_of_every_dtype(
    dtype: str, tmp_path: Path
) -> None:
    raws = [filled(dtype, (3, 5), step) for step in range(4)]
    run = written(tmp_path, [record("x", i, raw, dtype=dtype) for i, raw in enumerate(raws)])
    path = run / "rank0" / "forms" / f"{dtype}_3x5" / "value"
    array = zarr.open_array(path, mode="r")
    assert array[:].tobytes() == np.stack(raws).tobytes()
    assert array.attrs["anchor"]["dtype"] == dtype
    assert np.asarray(by_tensorstore(path)).tobytes() == np.stack(raws).tobytes()


def test_every_node_of_a_live_run_is_a_valid_zarr_node(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        for number, batch in enumerate((records()[:5], records()[5:])):
            put(writer, batch)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                members = dict(zarr.open_group(tmp_path / "run1.zarr", mode="r").members(None))
            assert "rank0/forms/float32_3x5/value" in members
            # Nothing is shown that was not published, however much is committed.
            assert members["rank0/forms/float32_3x5/value"].shape == (2 * number, 3, 5)
            writer.publish()


def test_what_is_published_is_what_foreign_readers_see(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        path = tmp_path / "run1.zarr/rank0/forms/float32_2"
        for step in range(4):
            put(writer, [record("x", step, floats(step, step))])
            writer.publish()
            assert zarr.open_array(path / "value", mode="r")[:, 0].tolist() == list(range(step + 1))
            assert zarr.open_array(path / "step", mode="r")[:].tolist() == list(range(step + 1))
            assert by_tensorstore(path / "step").tolist() == list(range(step + 1))


@pytest.mark.slow
def test_xarray_labels_a_closed_run_with_its_coordinates(tmp_path: Path) -> None:
    run = written(tmp_path, records())
    data = xarray.open_zarr(run, group="rank0/forms/float32_3x5", consolidated=False)
    assert data["value"].dims == ("record", "d0", "d1")
    assert set(data.coords) == {"series", "step", "pass_index", "call"}
    assert data["step"].values.tolist() == list(range(6))
    assert data["pass_index"].values.tolist() == [0, 1] * 3
    assert data["call"].values.tolist() == [0] * 6
    expected = np.stack([filled("float32", (3, 5), step) for step in range(6)])
    assert data["value"].values.tobytes() == expected.tobytes()


def test_tensors_of_one_shape_share_an_array_and_attributes_say_whose_a_record_is(
    tmp_path: Path,
) -> None:
    every = [
        record(f"t{n}", step, floats(n, step), kind=kind, order=4 * step + n)
        for step in range(5)
        for n, kind in enumerate(["value", "grad", "value"])
    ]
    run = written(tmp_path, every)
    data = xarray.open_zarr(run, group="rank0/forms/float32_2", consolidated=False)
    told = data.attrs["anchor"]["series"]
    assert {(one["name"], one["kind"], one["mode"]) for one in told.values()} == {
        ("t0", "value", "all"), ("t1", "grad", "all"), ("t2", "value", "all")
    }  # fmt: skip
    (number,) = (int(key) for key, one in told.items() if one["name"] == "t1")
    mine = data["value"][data["series"].values == number]
    assert mine.values.tolist() == [[1.0, step] for step in range(5)]


def test_a_series_that_comes_later_is_told_with_the_next_flush(tmp_path: Path) -> None:
    for attempt in range(2):
        with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
            for name in "ab":
                put(writer, [record(f"{name}{attempt}", 0, floats(1, 2))])
                writer.publish()
                group = zarr.open_group(tmp_path / "run1.zarr/rank0/forms/float32_2", mode="r")
                told = group.attrs["anchor"]["series"]
                assert set(map(int, told)) == set(group["series"][:].tolist())
                assert f"{name}{attempt}" in {one["name"] for one in told.values()}


def test_shapes_of_few_records_share_flat_arrays(tmp_path: Path) -> None:
    raws = [filled("float32", (1 + step, 2), step) for step in range(30)]
    run = written(tmp_path, [record("x", step, raw) for step, raw in enumerate(raws)])
    first = zarr.open_array(run / "rank0/forms/float32_1x2/value", mode="r")
    assert first[:].tobytes() == raws[0].tobytes()
    data = xarray.open_zarr(run, group="rank0/forms/flat_float32", consolidated=False)
    assert data["step"].values.tolist() == list(range(FORMS_AT_ONCE, 30))
    starts, shapes = data["start"].values, data["shape"].values
    for place, step in enumerate(range(FORMS_AT_ONCE, 30)):
        shape = shapes[place][shapes[place] >= 0]
        part = data["value"].values[starts[place] : starts[place] + shape.prod()]
        assert part.reshape(shape).tobytes() == raws[step].tobytes()


def test_a_shape_gets_an_array_of_its_own_once_it_has_many_records(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("x", n, filled("float32", (n + 1,), n)) for n in range(20)])
        for step in range(5):
            put(writer, [record("x", 20 + step, floats(*range(19)))] * 100)
    names = [path.name for path in (tmp_path / "run1.zarr/rank0/forms").iterdir()]
    assert "float32_19" in names
    assert "float32_18" not in names
    found = reader(tmp_path)
    rows = np.flatnonzero([shape == (19,) for shape in found.shapes(np.arange(520))])
    assert found.stack(rows)[1:].tolist() == [list(map(float, range(19)))] * 500


def test_shapes_of_any_length_have_names(tmp_path: Path) -> None:
    shapes = [(1,) * 64, (2,) + (1,) * 63, (), (0,), (10**12, 0)]
    every = [record("x", n, filled("float32", shape, n)) for n, shape in enumerate(shapes)]
    run = written(tmp_path, every)
    forms = zarr.open_group(run / "rank0/forms", mode="r")
    assert {form["value"].shape for _, form in forms.groups()} == {(1, *one) for one in shapes}
    assert "float32_scalar" in forms


def test_the_table_reads_as_columns_of_one_length(tmp_path: Path) -> None:
    run = written(tmp_path, records())
    table = zarr.open_group(run / "rank0" / "records", mode="r")
    assert table["step"][:].tolist() == [step for step in range(6) for _ in SHAPES]
    lengths = {name: array.shape[0] for name, array in table.arrays() if "hist" not in name}
    lengths |= {"hist_offset": table["hist_offset"].shape[0]}
    assert set(lengths.values()) == {6 * len(SHAPES)}
    digest = f"{table['digest_high'][0]:016x}{table['digest_low'][0]:016x}"
    first = records()[0].summary
    assert first is not None
    assert digest == first.digest.hex()


def test_attributes_keep_the_true_name_and_what_the_run_was(tmp_path: Path) -> None:
    name = "../a b/\x1b[31m" + "long" * 50
    with Writer.open(tmp_path, "run1", 2, header={"torch": "2.13"}) as writer:
        put(writer, [record(name, 0, floats(1), kind="opt.exp_avg", mode="final")])
    group = zarr.open_group(tmp_path / "run1.zarr", mode="r")
    about = group["rank2"].attrs["anchor"]
    assert (about["format"], about["state"]) == ("anchor-zarr", "closed")
    assert about["attempts"][0]["header"] == {"torch": "2.13"}
    told = group["rank2/forms/float32_1"].attrs["anchor"]["series"]
    assert told == {"0": {"name": name, "kind": "opt.exp_avg", "mode": "final"}}


def test_a_location_is_a_zarr_store_that_only_reads(tmp_path: Path) -> None:
    run = written(tmp_path, records())
    store = as_zarr(LocalLocation(run))
    group = zarr.open_group(store, mode="r")
    assert group["rank0/forms/float32_3x5/value"].shape == (6, 3, 5)
    mine = {path for path, _ in group.members(None)}
    assert mine == {path for path, _ in zarr.open_group(run, mode="r").members(None)}
    data = xarray.open_zarr(store, group="rank0/forms/float32_70000", consolidated=False)
    assert data["value"].shape == (6, 70_000)
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_group(store, mode="r+")["rank0/forms/float32_3x5/value"][0] = 1


def test_the_documents_on_disk_are_plain_json_of_zarr_version_3(tmp_path: Path) -> None:
    run = written(tmp_path, records())
    for path in run.rglob("zarr.json"):
        document = json.loads(path.read_text(), parse_constant=pytest.fail)
        assert document["zarr_format"] == 3
    assert not list(run.rglob(".*"))
