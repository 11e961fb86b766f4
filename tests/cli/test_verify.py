"""`anchor verify`: what is damaged is found and named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchor_server import serve
from anchorlib.record import Gap
from anchorlib.store import Writer
from anchorlib.store.format.layout import FORMS_AT_ONCE
from tests.cli.made import BIAS, HOSTILE, anchor, make_run, record, spawn
from tests.writing import put

pytestmark = pytest.mark.slow

GAP = Gap("fc1", "grad", "all", "line full", 3, 4, 6)


def flip(path: Path, at: int = 0, bit: int = 0) -> None:
    """Turn one bit of a file over."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


FORMS = {"fc1": "float32_100", "large": "float64_200000", "ragged": "flat_int64", "h": "uint8_4"}


def chunks(store: Path, name: str) -> list[Path]:
    """The files that hold a tensor's values: "*" those of all tensors."""
    form = FORMS.get(name, f"float32_{name}")
    return sorted((store / "run1.zarr/rank0/forms").glob(f"{form}/value/c.*"))


@pytest.fixture
def store(tmp_path) -> Path:
    rng = np.random.default_rng(5)
    records = [
        record("fc1", raw=rng.normal(size=100).astype(np.float32), step=step) for step in range(50)
    ]
    records += [record("large", raw=rng.normal(size=200_000), step=step) for step in range(5)]
    records += [record("ragged", raw=np.arange(n, dtype=np.int64), step=n) for n in range(1, 20)]
    records += [record("scalar", raw=np.float32(step), step=step) for step in range(3)]
    records += [record("empty", raw=np.zeros((0, 3), np.float32))]
    records += [record("bare", raw=None, dropped=np.ones(3), mode="summary")]
    make_run(tmp_path, records)
    make_run(tmp_path, [record("fc1", rank=1)], rank=1)
    return tmp_path


def test_a_sound_run_is_0_and_every_value_was_read(store):
    done = anchor("verify", "run1", "--store", store, "--json")
    assert (done.code, done.err) == (0, "")
    values = 50 + 5 + 19 + 3 + 1 + 1
    nbytes = 50 * 400 + 5 * 1_600_000 + 8 * sum(range(1, 20)) + 3 * 4 + 16
    assert done.json == {
        "run": "run1",
        "records": values + 1,
        "values": values,
        "bytes": nbytes,
        "unchecked": 0,
        "damaged": [],
        "gaps": [],
        "copied": [],
    }
    assert anchor("verify", "run1", "--store", store).out == (
        f"run1: {values} values ({nbytes} bytes) of {values + 1} records: all fit their digests\n"
    )


@pytest.mark.parametrize("name", ["fc1", "large", "ragged", "scalar"])
def test_a_flipped_bit_in_the_store_is_found_and_named(store, name):
    flip(chunks(store, name)[0], at=3, bit=5)
    done = anchor("verify", "run1", "--store", store, "--json")
    assert done.code == 1
    (found,) = done.json["damaged"]
    assert (found["name"], found["kind"], found["rank"]) == (name, "grad", 0)
    assert found["step"] == (FORMS_AT_ONCE - 1 if name == "ragged" else 0)
    assert found["reason"] == "the values do not fit their digest"
    said = anchor("verify", "run1", "--store", store)
    assert f"{name}@grad (all) rank 0 step {found['step']}" in said.out
    assert said.out.endswith(": 1 damaged\n")


def test_every_bit_of_a_value_counts(tmp_path):
    make_run(tmp_path, [record("h", raw=np.arange(4, dtype=np.uint8))])
    (file,) = chunks(tmp_path, "h")
    for bit in range(32):
        flip(file, bit // 8, bit % 8)
        assert anchor("verify", "run1", "--store", tmp_path).code == 1
        flip(file, bit // 8, bit % 8)
    assert anchor("verify", "run1", "--store", tmp_path).code == 0


def test_a_digest_that_was_damaged_is_found_too(store):
    flip(store / "run1.zarr/rank0/records/digest_low/c.0", at=8 * 7)
    (found,) = anchor("verify", "run1", "--store", store, "--json").json["damaged"]
    assert (found["name"], found["step"]) == ("fc1", 7)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_file_that_is_gone_or_cut_damages_its_values_alone(store, damage):
    file = chunks(store, "large")[2]
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    done = anchor("verify", "run1", "--store", store, "--json")
    assert done.code == 1
    assert [(one["name"], one["step"]) for one in done.json["damaged"]] == [("large", 2)]
    assert "damaged from outside" in done.json["damaged"][0]["reason"]


@pytest.mark.parametrize("column", ["seq", "form", "series", "row"])
def test_rows_that_cannot_be_read_any_more_are_missed(store, column):
    flip(store / f"run1.zarr/rank0/records/{column}/c.0", at=8 * 20, bit=6)
    done = anchor("verify", "run1", "--store", store)
    assert done.code == 1


def test_a_shape_that_was_damaged_is_no_defect(store):
    (shapes,) = (store / "run1.zarr/rank0/forms/flat_int64/shape").glob("c.*")
    flip(shapes, at=8 * 8 + 5, bit=1)  # of one record, to 2⁴¹ elements
    done = anchor("verify", "run1", "--store", store, "--json")
    assert (done.code, [one["name"] for one in done.json["damaged"]]) == (1, ["ragged"])


def test_a_rank_that_cannot_be_opened_does_not_hide_the_others(store):
    catalogue = store / "run1.zarr/rank0/catalog/c.0"
    flip(catalogue, at=catalogue.read_bytes().index(b'{"series"'), bit=6)
    done = anchor("verify", "run1", "--store", store, "--json")
    assert (done.code, done.json["values"]) == (1, 1)
    (found,) = done.json["damaged"]
    assert (found["rank"], found["name"]) == (0, None)
    assert "catalogue of rank 0 is damaged" in found["reason"]


DAMAGES = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "not UTF-8": lambda data: data[:20] + b"\xff" + data[21:],
    "in UTF-16": lambda data: data.decode().encode("utf-16"),
    "a list": lambda data: b"[]",
    "nested": lambda data: b"[" * 100_000,
    "another zarr": lambda data: data.replace(b'"zarr_format":3', b'"zarr_format":2'),
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_zarr_json_that_is_damaged_is_found_and_named(tmp_path, damage):
    make_run(tmp_path, [record(step=0), record("bare", raw=None, dropped=BIAS, mode="summary")])
    run = tmp_path / "run1.zarr"
    paths = sorted(run.rglob("zarr.json"))
    assert len(paths) >= 40
    for path in paths:
        data = path.read_bytes()
        if DAMAGES[damage] is None:
            path.unlink()
        else:
            path.write_bytes(DAMAGES[damage](data))
        done = anchor("verify", "run1", "--store", tmp_path, "--json")
        path.write_bytes(data)
        assert done.code == 1
        (told,) = done.json["damaged"]
        inside = path.relative_to(run).as_posix().removeprefix("rank0/")
        assert (told["rank"], told["name"]) == (0, None)
        assert told["reason"].removeprefix("of the run: ").startswith(f"{inside} ")
    assert anchor("verify", "run1", "--store", tmp_path).code == 0


@pytest.mark.parametrize(
    ("node", "old", "new"),
    [
        ("forms/float32_4/value", b'"data_type":"float32"', b'"data_type":"uint32"'),
        ("forms/float32_4/value", b'"shape":[1,4]', b'"shape":[1,5]'),
        ("forms/float32_4/step", b'"shape":[1]', b'"shape":[0]'),
        ("forms/float32_4", b'"name": "fc2.bias"', b'"name": "fc1.bias"'),
        ("records/digest_high", b'"endian":"big"', b'"endian":"little"'),
        ("records/min", b'"shape":[1]', b'"shape":[2]'),
        ("", b'"attempt":0', b'"attempt":1'),
    ],
)
def test_a_zarr_json_that_says_something_else_is_found(tmp_path, node, old, new):
    make_run(tmp_path, [record()])
    path = tmp_path / "run1.zarr/rank0" / node / "zarr.json"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    done = anchor("verify", "run1", "--store", tmp_path)
    assert done.code == 1
    assert f"{node}/zarr.json says another".lstrip("/") in done.out


def test_a_writer_that_was_killed_while_it_closed_damaged_nothing(tmp_path, monkeypatch):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record()])
    monkeypatch.setattr("anchorlib.store.write.publishing.Publisher.publish_table", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    assert anchor("verify", "run1", "--store", tmp_path).code == 0


def killed(*_arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "column", ["flags", "digest_high", "form", "series", "row", "hist_offset", "step"]
)
def test_a_column_that_is_gone_is_damage_of_the_rank(store, column):
    (store / "run1.zarr/rank0/records" / column / "c.0").unlink()
    done = anchor("verify", "run1", "--store", store, "--json")
    assert (done.code, done.err) == (1, "")
    assert any(f"records/{column}/c.0 is missing" in one["reason"] for one in done.json["damaged"])


def test_gaps_alone_are_3_and_damage_outweighs_them(tmp_path):
    raw = np.arange(100, dtype=np.float32)
    make_run(tmp_path, [record("fc1", raw=raw)], gaps=[GAP])
    done = anchor("verify", "run1", "--store", tmp_path)
    assert done.code == 3
    assert "fc1@grad lacks 3 of steps 4-6: line full\n" in done.out
    gap = anchor("verify", "run1", "--store", tmp_path, "--json").json["gaps"][0]
    assert (gap["reason"], gap["count"]) == ("line full", 3)
    flip(chunks(tmp_path, "fc1")[0])
    assert anchor("verify", "run1", "--store", tmp_path).code == 1


def test_a_collectors_run_is_verified_like_a_directory(store):
    flip(chunks(store, "fc1")[0], at=401)
    with serve(store) as collector:
        there = anchor("verify", f"grpc://{collector.address}/run1", "--json")
    assert (there.code, there.json["damaged"][0]["step"]) == (1, 1)
    assert there.json == anchor("verify", "run1", "--store", store, "--json").json
    gone = anchor("verify", f"grpc://{collector.address}/run1")
    assert (gone.code, gone.err.count("\n")) == (4, 1)


def test_a_run_that_is_still_written_is_verified_as_far_as_it_is_committed(tmp_path):
    make_run(tmp_path, [record("fc1")], close=False)
    assert anchor("verify", "run1", "--store", tmp_path, "--json").json["values"] == 1


def test_hostile_names_are_escaped_and_many_damages_are_summed_up(tmp_path):
    make_run(tmp_path, [record(HOSTILE, step=step) for step in range(30)])
    for file in chunks(tmp_path, "*"):
        file.write_bytes(bytes(len(file.read_bytes())))
    done = anchor("verify", "run1", "--store", tmp_path)
    assert (done.code, len(done.out.splitlines())) == (1, 22)
    assert "and 10 more: --json names them all\n" in done.out
    assert all(c.isprintable() or c == "\n" for c in done.out)
    names = {
        one["name"]
        for one in anchor("verify", "run1", "--store", tmp_path, "--json").json["damaged"]
    }
    assert names == {HOSTILE}


def test_a_run_that_is_not_there_is_wrong_usage(tmp_path):
    make_run(tmp_path, [record()])
    done = anchor("verify", "rnu1", "--store", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "did you mean 'run1'?" in done.err


def test_it_is_a_command_of_its_own_with_an_example():
    done = spawn("verify", "--help")
    assert done.returncode == 0
    assert "anchor verify run1" in done.stdout
