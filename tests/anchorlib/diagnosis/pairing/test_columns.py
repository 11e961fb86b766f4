"""A stored run's columns are those of its records, wherever the run lies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchor_server import Collector
from anchorlib.diagnosis.pairing.join import align
from anchorlib.diagnosis.pairing.tables.making import table_of
from anchorlib.diagnosis.pairing.tables.table import Table
from anchorlib.diagnosis.sizes.measurement import measure
from anchorlib.errors import OptionError, UnknownTensorError
from anchorlib.reading import open_run
from anchorlib.record import Edges, Gap, Record
from anchorlib.store import Writer
from anchorlib.store.stored import rows as stored_rows
from tests.anchorlib.diagnosis.strategies import records
from tests.anchorlib.diagnosis.tables import table
from tests.anchorlib.store.records import filled, floats, record
from tests.seeds import examples
from tests.strategies import dtype_names
from tests.writing import put

COLUMNS = ("step", "pass_index", "call", "attempt", "count", "digest", "kept")
SHAPES = [(3,), (2, 2), (), (0,), *((2, n) for n in range(1, 12))]


def write(store: Path, made: Iterable[Record], **options: Any) -> None:
    """A closed run of these records, rank by rank."""
    made = list(made)
    for rank in sorted({one.rank for one in made}):
        with Writer.open(store, "run1", rank, **options) as writer:
            put(writer, [one for one in made if one.rank == rank])


def rows(of: Table) -> list[tuple[Any, ...]]:
    """Each record as plain values: all that does not depend on how codes are numbered."""
    found = []
    for row in range(len(of)):
        figures = tuple(of.figures[name][row].item() for name in sorted(of.figures))
        values = b"".join(part.tobytes() for part in of.read(row, 5)) if of.kept[row] else None
        found.append(
            (
                of.tensors[of.tensor[row]],
                of.phases[of.phase[row]],
                of.dtypes[of.dtype[row]],
                of.shapes[of.shape[row]],
                *(np.asarray(getattr(of, name)[row]).tolist() for name in COLUMNS),
                repr(figures),
                values,
            )
        )
    return found


@pytest.mark.slow
@settings(max_examples=examples(25))  # each makes a run on disk
@given(records(), st.data())
def test_a_stored_run_becomes_the_table_of_its_records(made: list[Record], data: Any) -> None:
    made = [varied(one, data) for one in made]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), made)
        if made:
            assert rows(table_of(open_run("run1", folder))) == rows(table(made))


def varied(one: Record, data: Any) -> Record:
    """The same place with another dtype and shape, and maybe without values."""
    dtype = data.draw(dtype_names())
    raw = filled(dtype, data.draw(st.sampled_from(SHAPES)), seed=one.order)
    made = record(one.name, one.step, raw, dtype=dtype, values=data.draw(st.booleans()))
    kept = made.raw if one.mode != "summary" else None
    return replace(
        one, dtype=dtype, shape=raw.shape, raw=kept, summary=made.summary, flags=made.flags
    )


@pytest.fixture
def shapely(tmp_path: Path) -> tuple[Path, list[Record]]:
    """One series with more shapes than have arrays of their own."""
    made = [
        record("x", step, filled("bfloat16", shape, step), dtype="bfloat16", order=step)
        for step, shape in enumerate(SHAPES * 2)
    ]
    write(tmp_path, made)
    return tmp_path, made


def test_records_of_many_shapes_are_read_in_blocks(shapely: tuple[Path, list[Record]]) -> None:
    store, made = shapely
    found = table_of(open_run("run1", store))
    assert rows(found) == rows(table(made))
    for row, one in enumerate(made):
        assert one.raw is not None
        for nbytes in (1, 4, 7, 1000):
            blocks = list(found.read(row, nbytes))
            assert all(block.nbytes <= max(nbytes, 2) and block.ndim == 1 for block in blocks)
            assert b"".join(block.tobytes() for block in blocks) == one.raw.tobytes()


def test_small_records_of_several_series_and_ranks_are_read_together(tmp_path: Path) -> None:
    made = [
        replace(record(name, step, floats(step, n, rank), order=10 * step + n), rank=rank)
        for rank in range(2)
        for step in range(3)
        for n, name in enumerate("xyz")
    ]
    write(tmp_path, made)
    found = table_of(open_run("run1", tmp_path))
    some = np.random.default_rng(0).permutation(len(found))
    assert found.stack is not None
    whole = [np.concatenate(list(found.read(row, 100))) for row in some.tolist()]
    assert (found.stack(some) == np.stack(whole)).all()


def test_selectors_and_a_rank_choose(tmp_path: Path) -> None:
    made = [
        replace(record(name, 0, floats(n), kind=kind, order=n), rank=rank)
        for n, (name, kind, rank) in enumerate(
            [("fc1", "value", 0), ("fc1", "grad", 0), ("fc2", "value", 0), ("fc2", "value", 1)]
        )
    ]
    write(tmp_path, made)
    run = open_run("run1", tmp_path)

    def names(*selectors: str, rank: int | None = None) -> list[tuple[str, str, int]]:
        found = table_of(run, selectors, rank=rank)
        return [(one.name, one.kind, one.rank) for one in found.tensors]

    assert names("*@value") == [("fc1", "value", 0), ("fc2", "value", 0), ("fc2", "value", 1)]
    assert names("fc1") == [("fc1", "value", 0), ("fc1", "grad", 0)]
    assert names("*", rank=1) == [("fc2", "value", 1)]
    with pytest.raises(UnknownTensorError, match="did you mean 'fc2'"):
        names("fc9", "fc")
    with pytest.raises(OptionError, match="rank 7"):
        names("*", rank=7)


def test_of_a_resumed_run_the_last_attempts_are_seen(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0, header={"try": 1}) as writer:
        put(writer, [record("x", step, floats(step), order=step) for step in range(4)])
    with Writer.open(tmp_path, "run1", 0, resume=True, header={"try": 2}) as writer:
        again_made = [record("x", step, floats(-step), order=step) for step in range(2, 6)]
        coordinates = (replace(one.coordinates, attempt=1) for one in again_made)
        pairs = zip(again_made, coordinates, strict=True)
        put(writer, [replace(one, coordinates=there) for one, there in pairs])
    found = table_of(open_run("run1", tmp_path))
    assert found.step.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.figures["sum"].tolist() == [0, 1, -2, -3, -4, -5]
    assert found.header == {0: {"try": 2}}


def test_what_is_missing_and_what_made_what_come_with_the_table(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("x", 0, floats(1))])
        gaps = [
            Gap("x", "grad", mode, reason, count=n, first_step=0, last_step=1)
            for n, (mode, reason) in enumerate(
                [("all", "full"), ("sum", "full"), ("all", "disk")], 1
            )
        ]
        writer.gap(gaps)
        edges = Edges("x", "train", 0, 0, (1,), ops=("AddBackward0",), inputs=((0,),))
        writer.edges([edges])
    found = table_of(open_run("run1", tmp_path))
    assert found.gaps == {("x", "grad"): 6}
    assert [(one.name, one.ops) for one in found.edges[0]] == [("x", ("AddBackward0",))]


def test_a_live_run_is_a_table_of_what_was_committed(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("x", 0, floats(1), order=0)])
        run = open_run("run1", tmp_path)
        before = table_of(run)
        put(writer, [record("y", 1, floats(2), order=1), record("x", 1, floats(3), order=2)])
        after = table_of(run)
    assert (len(before), len(after)) == (1, 3)
    assert len(rows(before)) == 1
    found = align(before, after)
    assert found.equal.tolist() == [True]
    assert found.only_b.tolist() == [1, 2]


@pytest.mark.slow
def test_a_collectors_run_is_the_same_table(shapely: tuple[Path, list[Record]]) -> None:
    store, _ = shapely
    with Collector(store, bind="127.0.0.1:0") as collector:
        far = rows(table_of(open_run(f"grpc://{collector.address}/run1")))
    assert far == rows(table_of(open_run("run1", store)))


def test_a_column_of_one_value_is_held_once(tmp_path):
    write(tmp_path, [record("a", step, floats(step)) for step in range(100)])
    found = table_of(open_run("run1", tmp_path))
    held = {name: getattr(found, name).strides for name in ("pass_index", "phase", "step")}
    assert held == {"pass_index": (0,), "phase": (0,), "step": (8,)}
    assert found.pass_index.tolist() == [0] * 100
    assert found.figures["nan"].strides == (0,)


@pytest.mark.slow
def test_differing_values_are_read_in_the_order_they_lie_in(tmp_path):
    """Records of many tensors lie mixed in the chunk files: a read for each would be thousands."""
    for run, off in (("a", 0.0), ("b", 1e-7)):
        made = [
            record(f"t{n}", step, np.full(512, step + n + 1 + off, "<f4"), order=step * 40 + n)
            for step in range(50)
            for n in range(40)
        ]
        with Writer.open(tmp_path, run, 0) as writer:
            put(writer, made)
    pairs = align(*(table_of(open_run(run, tmp_path)) for run in "ab"))
    with patch.object(stored_rows, "read_into", wraps=stored_rows.read_into) as reads:
        found = measure(pairs, np.arange(len(pairs)))
    assert len(found) == 2000
    assert reads.call_count < 100
