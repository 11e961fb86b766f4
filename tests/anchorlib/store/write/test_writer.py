"""What a Writer commits, a reader gets back: every dtype, shape, mode and name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchorlib.block import block_of
from anchorlib.dtypes import DTYPES
from anchorlib.errors import StoreError
from anchorlib.record import Flag, Record
from anchorlib.store import Writer
from anchorlib.summary import summarise
from tests.anchorlib.store.records import assert_holds, filled, floats, reader, record, written
from tests.seeds import examples
from tests.strategies import storage_arrays
from tests.writing import put

FEW = settings(
    max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_twenty_shapes_of_one_tensor_come_back_each_as_it_was(tmp_path: Path) -> None:
    records = [
        record("x", step, filled("float32", (1 + step % 20, 3), seed=step)) for step in range(60)
    ]
    with Writer.open(tmp_path, "run1", 0) as writer:
        for start in range(0, 60, 7):
            put(writer, records[start : start + 7])
    assert_holds(reader(tmp_path), records)


@pytest.mark.slow
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


def test_values_that_the_queue_dropped_leave_their_rows_between_others(tmp_path: Path) -> None:
    records = [
        record("x", step, filled("float32", (n,), step), values=bool(step % 3))
        for step, n in enumerate([4] * 5 + list(range(14)))
    ]
    written(tmp_path, records)
    assert_holds(reader(tmp_path), records)


@pytest.mark.slow
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


def test_names_that_differ_in_case_alone_are_tensors_of_their_own(tmp_path: Path) -> None:
    records = [record(name, 0, floats(order), order=order) for order, name in enumerate(["a", "A"])]
    written(tmp_path, records)
    assert_holds(reader(tmp_path), records)


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


def bad_records() -> list[tuple[Record, str]]:
    """Records that cannot be, and a word of what is said of each."""
    good = record("x", 0, floats(1, 2))
    summary = replace(summarise(floats(1, 2), "float32"), digest=b"x")
    return [
        (replace(good, name=""), "has 0"),
        (replace(good, name="x" * 1025), "has 1025"),
        (replace(good, kind="../../etc"), "kind"),
        (replace(good, mode="m" * 1000), "mode"),
        (replace(good, dtype="float31"), "float31"),
        (replace(good, dtype="float64"), "carries"),
        (replace(good, shape=(3,)), "carries"),
        (replace(good, shape=(-1,), raw=None), "no tensor"),
        (replace(good, shape=(2**40, 2**40), raw=None), "too large"),
        (replace(good, shape=(1,) * 99, raw=None), "no tensor"),
        (replace(good, summary=None), "came to the store without its summary"),
        (replace(good, count=-1), "out of range"),
        (replace(good, time_ns=2**63), "out of range"),
        (replace(good, summary=summary), "digest"),
        (replace(good, order=2**63), "out of range"),
        (replace(good, coordinates=replace(good.coordinates, step=2**64)), "out of range"),
        (replace(good, coordinates=replace(good.coordinates, phase="")), "has 0"),
    ]


@pytest.mark.parametrize(("bad", "reason"), bad_records())
def test_a_record_that_cannot_be_costs_itself_alone_and_is_a_gap(
    bad: Record, reason: str, tmp_path: Path
) -> None:
    before = [record("x", 0, floats(1, 2)), record("ragged", 0, floats(3))]
    after = [record("x", step, floats(step, step)) for step in range(1, 4)]
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [before[0], bad, before[1]])
        assert (writer.committed, writer.left_out.records) == (2, 1)
        put(writer, after)
    found = reader(tmp_path)
    assert_holds(found, before + after)
    (gap,) = found.gaps()
    assert (gap.name, gap.count) == (bad.name, 1)
    assert reason in gap.reason


def test_what_a_block_defines_and_cannot_be_costs_its_own_rows_alone(tmp_path: Path) -> None:
    """Whoever makes a block of columns may have put anything into its tables."""
    records = [record(f"t{n % 3}", n, floats(n, n)) for n in range(9)]
    block = block_of(records)
    tables = replace(block.tables, series=[*block.tables.series[:2], ("t2", "no kind", "all")])
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.write_block(replace(block, tables=tables))
    found = reader(tmp_path)
    assert_holds(found, [one for one in records if one.name != "t2"])
    assert [(gap.name, gap.count, gap.first_step, gap.last_step) for gap in found.gaps()] == [
        ("t2", 3, 2, 8)
    ]


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        put(writer, [record("x", 0, floats(1))])
