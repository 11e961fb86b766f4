"""What a Writer commits, a reader gets back: every dtype, shape, mode and name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlib.dtypes import DTYPES
from anchorlib.errors import (
    AnchorError,
    InvalidNameError,
    OptionError,
    StoreError,
    UnknownDTypeError,
)
from anchorlib.record import Flag, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise
from tests.anchorlib.store.records import assert_holds, filled, floats, reader, record, written
from tests.strategies import storage_arrays

FEW = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    shapes = [(3, 5), (), (0,), (2, 0, 3), (1, 1), (300_000,)]
    records = [
        record(f"t{len(shape)}", step, filled(dtype, shape, seed=step), dtype=dtype)
        for step in range(2)
        for shape in shapes
    ]
    written(tmp_path, records)
    assert_holds(reader(tmp_path), records)


@FEW
@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_arrays_of_all_sorts_come_back(
    data: st.DataObject, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    arrays = data.draw(st.lists(storage_arrays(dtype), min_size=1, max_size=8))
    records = [record("x", step, raw, dtype=dtype) for step, raw in enumerate(arrays)]
    store = tmp_path_factory.mktemp("store")
    written(store, records)
    assert_holds(reader(store), records)


def test_records_that_are_not_contiguous_are_stored_by_value(tmp_path: Path) -> None:
    raw = np.arange(12, dtype="<f4").reshape(3, 4).T
    written(tmp_path, [record("x", 0, raw)])
    assert reader(tmp_path).raw(0).tolist() == raw.tolist()


def test_twenty_shapes_of_one_tensor_come_back_each_as_it_was(tmp_path: Path) -> None:
    records = [
        record("x", step, filled("float32", (1 + step % 20, 3), seed=step)) for step in range(60)
    ]
    with Writer.open(tmp_path, "run1", 0) as writer:
        for start in range(0, 60, 7):
            writer.write(records[start : start + 7])
    assert_holds(reader(tmp_path), records)


def test_shapes_of_several_ranks_and_dtypes_share_one_series(tmp_path: Path) -> None:
    shapes = [(n,) for n in range(12)] + [(n, 2) for n in range(12)] + [()] * 2
    records = [
        record("x", step, filled(dtype, shape, seed=step), dtype=dtype)
        for step, shape in enumerate(shapes)
        for dtype in ("float32", "bfloat16")
    ]
    written(tmp_path, records)
    found = reader(tmp_path)
    assert_holds(found, records)
    assert len(found.catalogue.series) == 1


def test_a_flat_record_larger_than_a_chunk_comes_back(tmp_path: Path) -> None:
    sizes = [*range(1, 10), 300_000, 17, 300_001]
    records = [record("x", step, filled("float32", (n,), step)) for step, n in enumerate(sizes)]
    written(tmp_path, records)
    assert_holds(reader(tmp_path), records)


def test_two_modes_of_one_tensor_are_two_series(tmp_path: Path) -> None:
    modes = ["all", "every_n:2", "summary", "sum:window=10"]
    records = [
        record("x", step, filled("float32", (4,), step), mode=mode)
        for step in range(5)
        for mode in modes
    ]
    written(tmp_path, records)
    found = reader(tmp_path)
    assert_holds(found, records)
    assert [entry.mode for entry in found.catalogue.series] == modes
    assert len({entry.path for entry in found.catalogue.series}) == len(modes)


def test_values_that_the_queue_dropped_leave_their_rows_between_others(tmp_path: Path) -> None:
    records = [
        record("x", step, filled("float32", (n,), step), values=bool(step % 3))
        for step, n in enumerate([4] * 5 + list(range(14)))
    ]
    written(tmp_path, records)
    assert_holds(reader(tmp_path), records)


@FEW
@given(
    names=st.lists(
        st.text("ab./_0%*@\x1b\n\\A c", min_size=1, max_size=8)
        | st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable()),
        min_size=1,
        max_size=8,
        unique=True,
    )
)
def test_names_come_back_exactly_and_never_leave_the_run(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("store")
    records = [
        record(name, step, floats(step), kind=kind)
        for step, name in enumerate(names)
        for kind in ("value", f"opt.{name}")
    ]
    written(store, records)
    assert_holds(reader(store), records)
    outside = {p.name for p in store.iterdir()} | {p.name for p in (store / "run1.zarr").iterdir()}
    assert outside == {".anchor", "run1.zarr", "rank0", "zarr.json"}


def test_names_that_differ_in_case_alone_have_directories_of_their_own(tmp_path: Path) -> None:
    names = ["fc", "FC", "Fc"]
    run = written(tmp_path, [record(name, 0, floats(1)) for name in names])
    folders = [path.name.casefold() for path in (run / "rank0" / "tensors").iterdir()]
    assert len(set(folders) - {"zarr.json"}) == len(names)


def test_columns_say_what_the_record_said(tmp_path: Path) -> None:
    one = replace(
        record("x", 7, floats(1, -2, 0), pass_index=2, call=3, phase="eval"),
        count=5,
        scale=1024.0,
        flags=Flag.SCALED | Flag.STEP_SKIPPED,
        order=11,
    )
    written(tmp_path, [one])
    found = reader(tmp_path)
    cells = {name: found.cell(name, 0) for name in ("step", "pass_index", "call", "count", "order")}
    assert cells == {"step": 7, "pass_index": 2, "call": 3, "count": 5, "order": 11}
    assert found.catalogue.phases[found.cell("phase", 0)] == "eval"
    assert found.cell("scale", 0) == 1024.0
    assert found.cell("flags", 0) == Flag.SCALED | Flag.STEP_SKIPPED
    digest = f"{found.cell('digest_high', 0):016x}{found.cell('digest_low', 0):016x}"
    assert one.summary is not None
    assert digest == one.summary.digest.hex()


def test_a_histogram_is_stored_only_where_it_is_smaller_than_the_values(tmp_path: Path) -> None:
    records = [
        record("small", 0, floats(1, 2)),
        record("large", 0, np.ones(1000, "<f4")),
        record("gone", 0, np.ones(2, "<f4"), values=False),
    ]
    written(tmp_path, records)
    assert reader(tmp_path).column("hist_length").tolist() == [-1, 1, 1]


def bad_records() -> list[tuple[Record, type[AnchorError]]]:
    good = record("x", 0, floats(1, 2))
    return [
        (replace(good, name=""), InvalidNameError),
        (replace(good, name="x" * 1025), InvalidNameError),
        (replace(good, kind="../../etc"), InvalidNameError),
        (replace(good, mode="m" * 1000), InvalidNameError),
        (replace(good, dtype="float31"), UnknownDTypeError),
        (replace(good, dtype="float64"), StoreError),
        (replace(good, shape=(3,)), StoreError),
        (replace(good, shape=(-1,), raw=None), StoreError),
        (replace(good, shape=(2**40, 2**40), raw=None), StoreError),
        (replace(good, shape=(1,) * 99, raw=None), StoreError),
        (replace(good, summary=None), OptionError),
        (replace(good, count=-1), StoreError),
        (
            replace(good, summary=replace(summarise(floats(1, 2), "float32"), digest=b"x")),
            StoreError,
        ),
        (replace(good, order=2**63), StoreError),
        (replace(good, coordinates=replace(good.coordinates, step=2**64)), StoreError),
        (replace(good, coordinates=replace(good.coordinates, phase="")), InvalidNameError),
    ]


@pytest.mark.parametrize(("bad", "error"), bad_records())
def test_a_batch_with_a_record_that_cannot_be_is_refused_whole(
    bad: Record, error: type[AnchorError], tmp_path: Path
) -> None:
    before = [record("x", 0, floats(1, 2)), record("y", 0, floats(3))]
    after = [record("x", step, floats(step, step)) for step in range(1, 4)]
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.write(before)
        with pytest.raises(error):
            writer.write([record("x", 9, floats(9, 9)), record("ragged", 9, floats(9)), bad])
        assert writer.committed == 2
        writer.write(after)
    assert_holds(reader(tmp_path), before + after)


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        writer.write([record("x", 0, floats(1))])
