"""A rank whose records lie in parts, written by the store's own writer: read as one."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.block import block_of
from anchorlib.errors import DamagedError, RunExistsError, RunNotFoundError, StoreError
from anchorlib.operations import gap_entry
from anchorlib.reading import open_run
from anchorlib.record import Gap
from anchorlib.store import Part, RankHandle, Writer, rank_handle
from tests.delivery.lines import numbered
from tests.seeds import examples

WRITER, OTHER = b"w" * 16, b"o" * 16


def write(store: Path, number: int, first: int, end: int, *, closes: bool = False, **told) -> None:
    """One collector's share of a session: it is given records first … end - 1."""
    part = Part(number, first, told.pop("restart", None))
    who, rank = told.pop("writer_id", WRITER), told.pop("rank", 0)
    with Writer.open(store, "run1", rank, writer_id=who, part=part, **told) as writer:
        assert writer.committed >= first
        writer.write_block(block_of([numbered(n) for n in range(writer.committed, end)]))
        if not closes:
            writer.publish()
            writer.abandon()


def steps(store: Path) -> list[int]:
    reader, rows = open_run("run1", store).rows(0)
    return reader.column("step")[rows].tolist()


@st.composite
def lives(draw):
    """Where a session was, one after the other: the part, its first record, and the end of what it
    was given there; the next part begins with what was acknowledged.
    """
    found, acknowledged = [], 0
    for _ in range(draw(st.integers(1, 6))):
        number, first = draw(st.integers(0, 2)), acknowledged
        acknowledged = first + draw(st.integers(0, 12))
        found.append((number, first, acknowledged + draw(st.integers(0, 9))))
    return found


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(lives())
def test_whichever_way_a_session_went_it_is_read_whole(life):
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        for at, (number, first, end) in enumerate(life):
            write(store, number, first, end, closes=at == len(life) - 1)
        run = open_run("run1", store)
        reader, rows = run.rows(0)
        wanted = [numbered(n) for n in range(max(end for _, _, end in life))]
        found = [reader.catalogue.series[n].name for n in reader.series_ids[rows].tolist()]
        assert found == [one.name for one in wanted]
        assert [reader.raw(row).tobytes() for row in rows.tolist()] == [
            one.raw.tobytes() for one in wanted
        ]
        reader.check_rows(rows)
        histograms = [reader.histograms(rows[at : at + 1])[0] for at in range(len(rows))]
        assert histograms == reader.histograms(rows)
        assert histograms == [one.summary.histogram for one in wanted]
        assert run.state == "closed"
        assert len(reader.catalogue.attempts) == bool(wanted or life)


@pytest.mark.slow
def test_a_rank_in_parts_that_grows_is_found_by_those_who_opened_it_before(tmp_path):
    def pinned() -> RankHandle:
        return rank_handle(open_run("run1", tmp_path).rows(0)[0])

    write(tmp_path, 0, 0, 10)
    assert pinned().reader().committed == 10
    write(tmp_path, 1, 8, 15)
    assert pinned().reader().committed == 15
    write(tmp_path, 1, 15, 20)
    pin = pinned()
    assert pin.rows == 20
    assert pin.reader().column("step")[:20].tolist() == list(range(20))
    assert pin.reader() is pin.reader()
    shutil.rmtree(tmp_path / "run1.zarr")
    write(tmp_path, 0, 0, 5, writer_id=OTHER)
    other = pinned()
    assert other.reader().committed == 5
    with pytest.raises(RunNotFoundError, match="another run is called run1"):
        replace(pin, rows=21).reader()


def test_a_part_that_lacks_its_end_is_missed(tmp_path):
    write(tmp_path, 0, 0, 10)
    write(tmp_path, 1, 12, 20)
    with pytest.raises(StoreError, match="records 10 to 11 of rank 0 of run1 are not here"):
        open_run("run1", tmp_path)
    write(tmp_path, 2, 9, 12)
    assert steps(tmp_path) == list(range(20))


def test_one_part_alone_is_missed_as_well(tmp_path):
    write(tmp_path, 1, 12, 12)
    with pytest.raises(StoreError, match="records 0 to 11 of rank 0 of run1 are not here"):
        open_run("run1", tmp_path)


def test_a_session_that_came_back_for_nothing_goes_on_in_its_attempt(tmp_path):
    write(tmp_path, 0, 0, 10)
    write(tmp_path, 1, 5, 5)
    write(tmp_path, 0, 5, 20, closes=True)
    assert steps(tmp_path) == list(range(20))
    assert open_run("run1", tmp_path).state == "closed"
    assert len(Writer.open(tmp_path, "run1", 0, resume=True)._reader.catalogue.attempts) == 2


def test_what_comes_before_what_is_there_may_come_later(tmp_path):
    """A spool is brought to a collector to which its session had moved on already."""
    write(tmp_path, 0, 0, 6)
    write(tmp_path, 1, 12, 20)
    write(tmp_path, 1, 6, 12)
    assert steps(tmp_path) == list(range(20))


def test_restarts_order_attempts_before_the_clock_does(tmp_path):
    write(tmp_path, 1, 0, 30, restart=1, writer_id=OTHER, resume=True)
    write(tmp_path, 0, 0, 20, restart=0)
    reader, rows = open_run("run1", tmp_path).rows(0)
    assert [one.restart for one in reader.catalogue.attempts] == [0, 1]
    assert reader.column("attempt")[rows].tolist() == [1] * 30


def test_what_was_recorded_anew_hides_all_that_came_before(tmp_path):
    write(tmp_path, 0, 0, 10)
    write(tmp_path, 1, 5, 20)
    write(tmp_path, 0, 0, 3, writer_id=OTHER, overwrite=True)
    assert steps(tmp_path) == [0, 1, 2]


def test_a_second_recording_of_the_name_is_refused_where_it_can_be_seen(tmp_path):
    write(tmp_path, 0, 0, 10)
    with pytest.raises(RunExistsError, match="exists already"):
        write(tmp_path, 0, 0, 10, writer_id=OTHER)
    write(tmp_path, 1, 0, 10, writer_id=OTHER)
    with pytest.raises(StoreError, match="was recorded twice under this name"):
        open_run("run1", tmp_path)


def test_who_had_records_acknowledged_here_is_refused_where_they_are_gone(tmp_path):
    with pytest.raises(StoreError, match="does not go on from the 15 records"):
        write(tmp_path, 1, 10, 20, acknowledged=15)
    write(tmp_path, 1, 10, 20, acknowledged=10)


def test_of_gaps_the_largest_total_counts_and_what_stores_left_out_is_added(tmp_path):
    told = {
        "queue full": (3, 5),
        "disk": (2, 4),
    }
    for place in range(2):
        part = Part(place, 0)
        with Writer.open(tmp_path, "run1", 0, writer_id=WRITER, part=part) as writer:
            gaps = [Gap("fc1", "grad", "all", why, n[place], 0, 9) for why, n in told.items()]
            writer.gap(gaps)
            writer.operations([gap_entry("too deep", 1, 0, 0)])
            writer.header({"place": place})
    run = open_run("run1", tmp_path)
    assert {gap.reason: gap.count for gap in run.gaps()} == {"queue full": 5, "disk": 6}
    assert run.header()["place"] == 1
    assert len(run.op_gaps()) == 1


def test_values_that_are_damaged_in_a_part_are_named(tmp_path):
    write(tmp_path, 0, 0, 10)
    write(tmp_path, 1, 8, 30)
    for file in (tmp_path / "run1.zarr" / "rank0.p1").glob("forms/*/value/c*"):
        data = np.fromfile(file, np.uint8)
        data[:64] ^= 1
        data.tofile(file)
    run = open_run("run1", tmp_path)
    reader, rows = run.rows(0)
    assert all(reader.raw(row) is not None for row in rows[:8].tolist())
    with pytest.raises(DamagedError, match="at step"):
        [reader.raw(row) for row in rows[8:].tolist()]
