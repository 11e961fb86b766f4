"""The log of operations beside the records: kept once, found again, and damage told."""

from __future__ import annotations

import json

import pytest
import zarr

from anchorlib.errors import DamagedError
from anchorlib.operations import read_entries
from anchorlib.store import LocalLocation, RankAudit, RankReader, Writer
from anchorlib.store.write import op_log
from tests.anchorlib.store.records import floats, record
from tests.writing import put

KEY = "0" * 32
STRUCTURE = {"structure": KEY, "ops": [{"op": "aten.sin.default", "stage": "forward"}]}


def row(step):
    told = {"step": step, "first": 0, "passes": [0], "structure": KEY, "digests": "", "floats": []}
    return {"row": told}


def reader(store):
    return RankReader(LocalLocation(store / "run1.zarr"), 0)


def steps(store, **attempt):
    return [op.step for op in read_entries(reader(store).operations(**attempt))]


def faults(store):
    location = LocalLocation(store / "run1.zarr")
    return list(RankAudit(location, RankReader(location, 0)).faults())


def test_a_rank_that_traced_nothing_has_no_log(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.operations([])
    assert not (tmp_path / "run1.zarr" / "rank0" / "ops").exists()
    assert reader(tmp_path).operations() == []


def test_entries_are_there_at_once_and_any_zarr_reader_can_open_the_log(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.operations([STRUCTURE, row(0)])
        assert steps(tmp_path) == [0]
        put(writer, [record("fc1", 0, floats(1))])
        writer.operations([row(1)])
    assert steps(tmp_path) == [0, 1]
    log = zarr.open_group(tmp_path / "run1.zarr", mode="r")["rank0/ops/log"]
    lines = bytes(log[:].tobytes()).splitlines()
    assert [next(iter(json.loads(line))) for line in lines] == ["structure", "row", "row"]
    assert faults(tmp_path) == []


def test_entries_that_are_told_again_are_kept_once(tmp_path):
    for _stream in range(2):
        writer = Writer.open(tmp_path, "run1", 0, writer_id=b"w" * 16)
        writer.operations([STRUCTURE, row(0)])
        writer.operations([STRUCTURE, row(0), row(1)])
        writer.abandon()
    assert len(reader(tmp_path).operations()) == 3


def test_each_attempt_has_rows_of_its_own_and_shares_structures(tmp_path):
    for resume in (False, True):
        with Writer.open(tmp_path, "run1", 0, resume=resume) as writer:
            writer.operations([STRUCTURE, row(0)])
    entries = reader(tmp_path).operations()
    assert [entry.get("attempt") for entry in entries] == [None, 0, 1]
    assert len(reader(tmp_path).operations(attempt=1)) == 2


def test_overwriting_a_rank_removes_its_log(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.operations([STRUCTURE, row(0)])
    Writer.open(tmp_path, "run1", 0, overwrite=True).close()
    assert reader(tmp_path).operations() == []


def test_a_line_that_a_crash_cut_off_is_none_and_the_next_takes_its_place(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0, writer_id=b"w" * 16)
    writer.operations([STRUCTURE, row(0)])
    end = writer._operations._file.end
    writer.abandon()
    chunk = tmp_path / "run1.zarr" / "rank0" / "ops" / "log" / "c.0"
    with chunk.open("r+b") as file:
        file.seek(end)
        file.write(b'{"row": {"step": 1, "fir')
    assert steps(tmp_path) == [0]
    with Writer.open(tmp_path, "run1", 0, writer_id=b"w" * 16) as again:
        again.operations([row(2)])
    assert steps(tmp_path) == [0, 2]
    assert faults(tmp_path) == []


def test_a_flipped_bit_is_damage_of_the_log_alone(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("fc1", 0, floats(1))])
        writer.operations([STRUCTURE, row(0)])
    chunk = tmp_path / "run1.zarr" / "rank0" / "ops" / "log" / "c.0"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(DamagedError, match="log of operations"):
        reader(tmp_path).operations()
    assert reader(tmp_path).committed == 1
    assert any("log of operations" in fault for fault in faults(tmp_path))


def test_a_log_may_be_longer_than_one_chunk(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.operations([STRUCTURE])
        writer.operations([row(step) for step in range(2000)])
    assert steps(tmp_path) == list(range(2000))
    assert len(list((tmp_path / "run1.zarr" / "rank0" / "ops" / "log").glob("c.*"))) > 1


def test_beyond_its_bound_the_log_says_that_there_was_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(op_log, "LOG_BYTES", 2000)
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer.operations([STRUCTURE])
        for step in range(100):
            writer.operations([row(step)])
    entries = reader(tmp_path).operations()
    gaps = [entry["gap"] for entry in entries if "gap" in entry]
    kept = len([entry for entry in entries if "row" in entry])
    assert gaps[-1]["reason"] == op_log.LEFT_OUT
    assert kept + gaps[-1]["count"] == 100
    size = (tmp_path / "run1.zarr" / "rank0" / "ops" / "log" / "c.0").read_bytes()
    assert len(size.rstrip(b"\0")) < 6000
