"""Values that are not those that were recorded are never handed out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anchorlib
from anchor_server import serve
from anchorlib import DamagedError, StoreError, ValuesNotKeptError
from anchorlib.store import Writer
from anchorlib.store.stored.rows import StoredRows
from tests.anchorlib.store.records import record
from tests.cli.made import anchor
from tests.writing import put

RNG = np.random.default_rng(7)
RECORDS = [
    *(record("small", step, RNG.normal(size=3).astype("<f4")) for step in range(6)),
    *(record("large", step, RNG.normal(size=300_000).astype("<f4")) for step in range(6)),
    *(record("ragged", step, RNG.normal(size=step + 1).astype("<f4")) for step in range(12)),
]
ASKED = {
    "values": lambda series: series.values(),
    "raw": lambda series: series.raw(),
    "to_torch": lambda series: series.to_torch(),
    "to_xarray": lambda series: series.to_xarray(),
    "at": lambda series: series.at(step=3).array,
    "record": lambda series: series.record(3),
    "records": lambda series: list(series.records()),
    "records with summaries": lambda series: list(series.records(summaries=True)),
}

STACKED = ("values", "raw", "to_torch", "to_xarray")


def place(store: Path, name: str) -> tuple[Path, int]:
    """A file, and a byte of it, that hold values of step 3 of a tensor."""
    forms = store / "run1.zarr/rank0/forms"
    return {
        "small": (forms / "float32_3/value/c.0.0", 3 * 12 + 5),
        "large": (forms / "float32_300000/value/c.3.0", 4 * 200_000),
        "ragged": (forms / "float32_4/value/c.0.0", 2),
    }[name]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [replace(one, order=order) for order, one in enumerate(RECORDS)])
    return tmp_path


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file over."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0] ^ 4
        file.seek(at)
        file.write(bytes([byte]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (name, asked)
        for name in ("small", "large", "ragged")
        for asked in ASKED
        if name != "ragged" or asked not in STACKED  # they have no common shape
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "gone", "cut"])
def test_whatever_asks_for_a_damaged_value_is_told_which_it_is(store, name, asked, damage):
    path, at = place(store, name)
    if damage == "flipped":
        flip(path, at)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:at])
    series = anchorlib.open_run("run1", store)[f"{name}@grad"]
    with pytest.raises(DamagedError) as caught:
        ASKED[asked](series)
    assert isinstance(caught.value, StoreError | OSError)
    step = 3 if damage == "flipped" or "at" in asked or asked == "record" else "[0-5]"
    told = rf"run1: the values of {name}@grad at step {step}, pass 0, call 0, rank 0 are damaged: "
    assert re.match(told, str(caught.value))
    assert "\n" not in str(caught.value)


def test_what_is_sound_beside_a_damaged_value_is_read(store):
    flip(*place(store, "small"))
    run = anchorlib.open_run("run1", store)
    for name in ("small", "large", "ragged"):
        for one in RECORDS:
            if one.name == name and (name != "small" or one.step != 3):
                assert run[f"{name}@grad"].at(step=one.step).raw.tobytes() == one.raw.tobytes()
    rest = run["small@grad"].where(steps=[0, 1, 2, 4, 5])
    assert rest.values().tolist() == [RECORDS[step].raw.tolist() for step in (0, 1, 2, 4, 5)]


def test_histograms_that_are_counted_from_values_are_of_sound_ones(store):
    flip(*place(store, "small"))
    flip(*place(store, "large"))
    run = anchorlib.open_run("run1", store)
    for ask in (
        run["small@grad"].histogram,
        run["small@grad"].histograms,
        lambda: run.histogram("*"),
    ):
        with pytest.raises(DamagedError, match="small@grad at step 3"):
            ask()
    # Of a large tensor the histogram was stored when the values were sound.
    assert run["large@grad"].histogram().numel == 6 * 300_000


def test_a_collectors_run_is_checked_too(store):
    flip(*place(store, "large"))
    with serve(store, bind="127.0.0.1:0") as collector:
        run = anchorlib.open_run(f"grpc://{collector.address}/run1")
        assert len(run["small@grad"].values()) == 6
        with pytest.raises(DamagedError, match="large@grad at step 3"):
            run["large@grad"].values()


@pytest.mark.parametrize(
    "arguments",
    [
        ("pull", "run1", "--tensor", "small@grad"),
        ("pull", "run1", "--tensor", "small@grad", "--json"),
        ("hist", "run1", "--tensor", "small"),
        ("hist", "run1", "--tensor", "*", "--as", "fp16", "--json"),
        ("export", "run1", "--tensorboard", "tb"),
        ("report", "run1", "-o", "run1.html"),
        ("push", "run1", "--to", "copy"),
    ],
    ids=" ".join,
)
def test_a_command_that_meets_a_damaged_value_names_it_and_ends_with_3(
    store, arguments, monkeypatch
):
    monkeypatch.chdir(store)
    flip(*place(store, "small"))
    done = anchor(*arguments, "--store", store)
    assert (done.code, done.out) == (3, "")
    assert "small@grad at step 3" in done.err
    assert done.err.count("\n") == 1


def test_what_was_kept_is_read_where_some_values_were_dropped(tmp_path):
    raws = [np.full(2, step, "<f4") for step in range(5)]
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("x", step, raws[step], values=step % 2 == 0) for step in range(5)])
    series = anchorlib.open_run("run1", tmp_path)["x@grad"]
    with pytest.raises(ValuesNotKeptError, match=r"2 of 5 .*\.where\(kept=True\)"):
        series.values()
    assert series.where(kept=True).values().tolist() == [[0, 0], [2, 2], [4, 4]]
    assert series.where(kept=True).columns["step"].tolist() == [0, 2, 4]
    assert series.where(kept=False).columns["step"].tolist() == [1, 3]
    assert series.where(kept=True, steps=range(1, 4)).values().tolist() == [[2, 2]]


def column(store: Path, name: str) -> Path:
    """The file of a column of the table."""
    return store / "run1.zarr/rank0/records" / name / "c.0"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["min", "l2", "nan", "step", "digest_low", "hist_count", "check"])
@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("stats", ("--json",)),
        ("hist", ("--json",)),
        ("export", ("--csv", "-")),
        ("export", ("--parquet", "x.parquet")),
        ("export", ("--tensorboard", "tb")),
    ],
    ids=["stats", "hist", "csv", "parquet", "tensorboard"],
)
def test_a_command_that_shows_a_damaged_row_names_it_and_ends_with_3(
    store, name, command, more, monkeypatch
):
    monkeypatch.chdir(store)
    flip(column(store, name), 8 * 9)  # the row of large@grad at step 3, or bins before it
    done = anchor(command, "run1", "--tensor", "large@grad", *more, "--store", store)
    assert (done.code, done.out) == (3, "")
    assert re.search(r"the figures of large@grad at step \d+, .* fit their checksum", done.err)
    assert done.err.count("\n") == 1
    beside = anchor(command, "run1", "--tensor", "small@grad", *more, "--store", store)
    assert beside.code == 0


def test_columns_are_compared_with_their_checksums_where_that_is_asked(store):
    flip(column(store, "max"), 8 * 9)
    series = anchorlib.open_run("run1", store)["large@grad"]
    with pytest.raises(DamagedError, match="the figures of large@grad at step 3"):
        series.columns.checked()
    rest = series.where(steps=[0, 1, 2, 4, 5])
    sound = [float(one.raw.max()) for one in RECORDS if one.name == "large" and one.step != 3]
    assert rest.columns.checked()["max"].tolist() == sound


def test_series_of_few_records_are_checked_together_and_one_at_fault_is_no_other_s_fault(
    tmp_path, monkeypatch
):
    records = [
        record(f"t{n}", step, np.array([n, step], "<f4")) for step in (0, 1) for n in range(99)
    ]
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [replace(one, order=order) for order, one in enumerate(records)])
    flip(column(tmp_path, "max"), 8 * 50)
    picked, pick = [], StoredRows.pick

    def counted(self, rows):
        picked.append(len(rows))
        return pick(self, rows)

    monkeypatch.setattr(StoredRows, "pick", counted)
    run = anchorlib.open_run("run1", tmp_path)
    for n in range(99):
        if n == 50:
            with pytest.raises(DamagedError, match="t50@grad at step 0"):
                run[f"t{n}@grad"].columns.checked()
        else:
            assert run[f"t{n}@grad"].columns.checked()["l2"].tolist() == [n, np.hypot(n, 1)]
    assert len(picked) < 99


def test_figures_are_of_what_was_recorded_whatever_became_of_the_values(store):
    before = anchor("stats", "run1", "--tensor", "large@grad", "--json", "--store", store)
    flip(*place(store, "large"))
    after = anchor("stats", "run1", "--tensor", "large@grad", "--json", "--store", store)
    assert (after.code, after.out) == (0, before.out)
