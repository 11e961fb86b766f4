"""Gaps, lineage and headers are stated within bounds, and what is beyond them is counted."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorlib.errors import StoreError
from anchorlib.record import UNKNOWN, Edges, Gap
from anchorlib.store import Writer
from anchorlib.store.disk import full as full_disk
from anchorlib.store.write import ledgers
from tests.anchorlib.store.disk.test_budget import Free
from tests.anchorlib.store.records import reader
from tests.seeds import examples


def lost(number: int, count: int, name: str = "") -> Gap:
    return Gap(name or f"t{number}", "grad", "all", "line full", count, 0, count)


def edges(number: int) -> Edges:
    return Edges(f"t{number}", "train", 0, 0, (number,))


def catalogue_bytes(store: Path) -> int:
    return reader(store).catalogue_end


@pytest.fixture
def _time_stands_still(monkeypatch):
    monkeypatch.setattr(ledgers, "time", SimpleNamespace(monotonic=lambda: 0.0))


TOLD = st.lists(
    st.one_of(st.just("again"), st.tuples(st.integers(0, 7), st.integers(1, 5))), max_size=16
)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(TOLD, st.sampled_from([(4, 1 << 20), (8, 0), (8, 700), (8, 1500)]))
def test_the_totals_that_are_stored_add_up_to_those_that_were_told(told, bounds):
    """Whether each has its own statement or not, through any number of streams of the writer."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(ledgers, "NAMED", bounds[0])
        patch.setattr(ledgers, "GAP_BYTES", bounds[1])
        store = Path(folder)
        totals: Counter[int] = Counter()
        fresh = 0
        writer = Writer.open(store, "run1", 0, writer_id=b"one")
        for event in told:
            if event == "again":  # a stream that broke: everything is told anew
                writer.publish()
                writer.abandon()
                writer = Writer.open(store, "run1", 0, writer_id=b"one")
                writer.gap([lost(*one) for one in totals.items()])
                continue
            number, more = event
            totals[number] += more
            fresh += writer.gap([lost(number, totals[number])])["line full"]
        writer.close()
        found = reader(store).gaps()
        assert sum(gap.count for gap in found) == sum(totals.values())
        named = {gap.name: gap.count for gap in found if gap.name != UNKNOWN}
        assert all(count <= totals[int(name[1:])] for name, count in named.items())
        assert {gap.reason for gap in found if gap.name == UNKNOWN} <= {ledgers.FOLDED}
        assert fresh <= sum(totals.values())


def test_what_was_folded_by_one_attempt_is_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "NAMED", 1)
    for attempt in range(2):
        with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
            writer.gap([lost(number, attempt + 1) for number in range(3)])
    counts = [(gap.name, gap.count) for gap in reader(tmp_path).gaps()]
    assert counts == [("t0", 1), (UNKNOWN, 2), ("t0", 2), (UNKNOWN, 4)]


@pytest.mark.usefixtures("_time_stands_still")
def test_a_total_that_is_told_again_and_again_is_written_as_it_doubles(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        for count in range(1, 1001):
            writer.gap([lost(0, count)])
        assert 500 <= reader(tmp_path).gaps()[0].count <= 1000
        assert catalogue_bytes(tmp_path) < 4000
        writer.publish()
        assert reader(tmp_path).gaps() == [lost(0, 1000)]


@pytest.mark.usefixtures("_time_stands_still")
def test_totals_that_did_not_change_are_not_written_again(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        for most in range(100):  # as one that tells all it knows whenever that is one more
            writer.gap([lost(number, 1) for number in range(most)])
    assert catalogue_bytes(tmp_path) < 100 * 250


def test_a_million_names_end_in_one_statement(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "NAMED", 50)
    with Writer.open(tmp_path, "run1", 0) as writer:
        for start in range(0, 5000, 500):
            writer.gap([lost(number, 2) for number in range(start, start + 500)])
        size = catalogue_bytes(tmp_path)
        ledger = writer._statements._gaps
        held = [ledger._seen, ledger._written, ledger._grown, ledger._beyond]
        assert max(map(len, held)) <= 50
    found = reader(tmp_path).gaps()
    assert len(found) == 51
    assert sum(gap.count for gap in found) == 10_000
    assert size < 20_000


def test_lineage_and_headers_beyond_the_bound_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "LINEAGE_BYTES", 2000)
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one", header={"seed": 1}) as writer:
        writer.edges([edges(number) for number in range(50)])
        writer.header({"note": "x" * 3000})
        writer.header({"late": True})
    found = reader(tmp_path)
    kept = len(found.catalogue.edges)
    assert 0 < kept < 50
    header = found.catalogue.attempts[0].header
    assert header["seed"] == 1
    assert "note" not in header
    assert header[ledgers.LEFT_OUT] == 50 - kept + 1 + ("late" not in header)
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one") as writer:  # told everything anew
        writer.edges([edges(number) for number in range(50)])
    assert reader(tmp_path).catalogue.attempts[0].header == header
    with Writer.open(tmp_path, "run1", 0, resume=True, header={"note": "x" * 3000}) as writer:
        assert writer.attempt == 1
    assert reader(tmp_path).catalogue.attempts[1].header == {ledgers.LEFT_OUT: 1}


@pytest.fixture
def full(monkeypatch) -> None:
    """A file system of which but the twentieth is used; it is asked each time."""
    monkeypatch.setattr(os, "statvfs", lambda path: Free(f_bavail=50, f_blocks=1000))
    monkeypatch.setattr(full_disk, "RECHECK_SECONDS", -1.0)


@pytest.mark.parametrize("said", ["gap", "edges", "header", "attempt"])
def test_statements_do_not_pass_the_reserve_of_who_waits(tmp_path, request, said):
    writer = Writer.open(tmp_path, "run1", 0, wait_for_room=True)
    writer.publish()
    request.getfixturevalue("full")
    before = catalogue_bytes(tmp_path)
    calls = {
        "gap": lambda: writer.gap([lost(0, 1)]),
        "edges": lambda: writer.edges([edges(0)]),
        "header": lambda: writer.header({"seed": 1}),
        "attempt": lambda: Writer.open(tmp_path, "run2", 0, wait_for_room=True),
    }
    for _ in range(2):
        with pytest.raises(StoreError, match="beyond the twentieth that stays free"):
            calls[said]()
    writer.publish()
    assert catalogue_bytes(tmp_path) == before
    assert not (tmp_path / "run2.zarr").exists()
    writer.abandon()


@pytest.mark.usefixtures("full")
def test_a_full_disk_is_told_by_gaps_and_costs_lineage_that_is_counted(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.gap([lost(0, 3)])
        writer.edges([edges(0), edges(1)])
        writer.header({"torch.backend": "inductor"})
    found = reader(tmp_path)
    assert found.gaps() == [lost(0, 3)]
    assert found.catalogue.edges == {}
    header = found.catalogue.attempts[0].header
    assert header == {"torch.backend": "inductor", ledgers.LEFT_OUT: 2}


def test_statements_count_into_what_the_run_takes(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        before = writer._budget.used
        writer.gap([lost(number, 1, name="x" * 900 + str(number)) for number in range(100)])
        assert writer._budget.used - before > 90_000


def test_a_writer_keeps_no_statement_in_memory(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        for number in itertools.islice(itertools.count(), 20):
            writer.gap([lost(number, 1)])
            writer.edges([edges(number)])
        writer.publish()
        catalogue = writer._reader.catalogue
        assert (len(catalogue.gaps), len(catalogue.edges)) == (0, 0)
    assert (len(reader(tmp_path).gaps()), len(reader(tmp_path).catalogue.edges)) == (20, 20)
