"""A bit that flips anywhere in what a run says is found, in rows, pairs, labels and catalogue."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from anchorlib.record import Gap
from anchorlib.store import LocalLocation, RankAudit, RankReader, Writer
from anchorlib.store.format.checks import is_sound
from anchorlib.store.format.chunk_sizes import ROWS_PER_CHUNK
from anchorlib.store.format.layout import COLUMNS, HIST_COLUMNS
from tests.anchorlib.store.auditing import faults, flip
from tests.anchorlib.store.records import floats, record
from tests.writing import put

ROWS = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A closed run with plain, flat, summarised and empty records, and a second attempt."""
    store = tmp_path_factory.mktemp("made")
    for first in (0, ROWS // 2):
        with Writer.open(store, "run1", 0, resume=True, header={"seed": 3}) as writer:
            for step in range(first, first + ROWS // 2, 4):
                put(
                    writer,
                    [
                        record("h", step, floats(*range(step + 1, step + 101))),
                        record("ragged", step + 1, floats(*range(step + 1))),
                        record("bare", step + 2, floats(step, 2, 3), values=False),
                        record("loss", step + 3, np.float32(step)),
                    ],
                )
            writer.gap([Gap("h", "grad", "all", "line full", 3, 4, 6)])
    return store


@pytest.fixture
def store(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def rank(store: Path) -> Path:
    return store / "run1.zarr/rank0"


def test_a_run_that_nobody_touched_has_no_faults(store):
    assert faults(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "seq"])
def test_a_bit_of_any_column_is_found_in_its_row(store, column):
    chance = random.Random(column)
    path = rank(store) / "records" / column / "c.0"
    width = 8 * COLUMNS[column].itemsize
    for row in chance.sample(range(ROWS), 6):
        place = row * width + chance.randrange(width)
        flip(path, place)
        found = faults(store)
        # A series or form that nobody knows ends what can be read, as after a power loss.
        assert row in found or f"{ROWS - row} of {ROWS} rows cannot be read any more" in found
        flip(path, place)
    assert faults(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("column", HIST_COLUMNS)
def test_a_bit_of_any_histogram_pair_is_found_in_its_row(store, column):
    chance = random.Random(column)
    reader = RankReader(LocalLocation(store / "run1.zarr"), 0)
    offsets, lengths = reader.column("hist_offset"), reader.column("hist_length")
    width = 8 * HIST_COLUMNS[column].itemsize
    for row in np.flatnonzero(lengths > 0).tolist():
        pair = int(offsets[row]) + chance.randrange(int(lengths[row]))
        place = pair * width + chance.randrange(width)
        flip(rank(store) / "records" / column / "c.0", place)
        assert faults(store) == [row]
        flip(rank(store) / "records" / column / "c.0", place)


def test_a_bit_of_the_row_numbers_is_found(store):
    for row in (0, 1, ROWS // 2, ROWS - 1):
        place = 64 * row + random.Random(row).randrange(64)
        flip(rank(store) / "records/seq/c.0", place)
        found = faults(store)
        assert f"{ROWS - row} of {ROWS} rows cannot be read any more" in found
        behind = f"row {row} says it is none, but {ROWS - row - 1} come after it"
        assert (behind in found) is (row < ROWS - 1)
        flip(rank(store) / "records/seq/c.0", place)


def test_a_hole_in_the_rows_of_a_run_that_was_never_published_is_found(tmp_path):
    writer = Writer.open(tmp_path, "run1", 0)
    put(writer, [record("h", step, floats(step)) for step in range(8)])
    writer.abandon()
    assert faults(tmp_path) == []
    flip(rank(tmp_path) / "records/seq/c.0", 64 * 5)
    assert faults(tmp_path) == ["row 5 says it is none, but 2 come after it"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["shape", "start"])
def test_a_bit_of_the_shapes_of_many_is_found(tmp_path, part):
    raws = [floats(*range(n)).reshape(n, 1) for n in range(1, 30)]
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [record("h", step, raw) for step, raw in enumerate(raws)])
    path = rank(tmp_path) / f"forms/flat_float32/{part}/c.0{'.0' * (part == 'shape')}"
    for place in range(0, 8 * 8 * 10, 37):
        flip(path, place)
        found = faults(tmp_path)
        assert len(found) == 1, (place, found)
        flip(path, place)


@pytest.mark.parametrize("name", ["series", "step", "pass_index", "call"])
def test_a_bit_of_the_labels_that_xarray_reads_is_found(store, name):
    path = rank(store) / f"forms/float32_scalar/{name}/c.0"
    if not path.exists():  # full of zeros so far
        path.write_bytes(bytes(8 * ROWS_PER_CHUNK))
    flip(path, 64 * 3 + 1)
    assert faults(store) == [15]


@pytest.mark.slow
def test_every_bit_of_the_catalogue_counts(store):
    path = rank(store) / "catalog/c.0"
    size = len(path.read_bytes().rstrip(b"\0"))
    chance = random.Random(4)
    places = [8 * (size - 1) + bit for bit in range(8)]  # the last line's end
    places += [8 * at + bit for at in chance.sample(range(size), 40) for bit in range(8)]
    for place in places:
        flip(path, place)
        assert faults(store), (place, path.read_bytes()[place // 8 - 5 : place // 8 + 5])
        flip(path, place)
    assert faults(store) == []


def without_checksums(store: Path) -> None:
    """The run as an older writer would have left it."""
    path = rank(store) / "catalog/c.0"
    data = path.read_bytes()
    lines = [json.loads(line) for line in data.rstrip(b"\0").splitlines()]
    for line in lines:
        del line["check"]
        line.pop("checked", None)
    old = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    path.write_bytes(old.ljust(len(data), b"\0"))
    shutil.rmtree(rank(store) / "records/check")
    document = path.with_name("zarr.json")
    told = json.loads(document.read_bytes())
    document.write_text(json.dumps({**told, "shape": [len(old)]}))


def test_a_run_of_an_older_writer_opens_and_says_that_its_rows_are_unchecked(store):
    without_checksums(store)
    location = LocalLocation(store / "run1.zarr")
    audit = RankAudit(location, RankReader(location, 0))
    assert [audit.rows(*part).unchecked for part in audit.parts()] == [ROWS]
    assert faults(store) == []


def test_a_checksum_that_is_gone_is_not_taken_for_an_older_writers(store):
    path = rank(store) / "records/check/c.0"
    data = bytearray(path.read_bytes())
    data[8 * 7 : 8 * 8] = bytes(8)
    path.write_bytes(data)
    assert faults(store) == [7]
    shutil.rmtree(path.parent)
    (found,) = faults(store)
    assert "check/c.0 is missing" in str(found)


def test_a_line_is_what_json_reads_and_its_checksum_is_of_all_before_it(store):
    data = (rank(store) / "catalog/c.0").read_bytes()
    lines = data.rstrip(b"\0").splitlines()
    assert len(lines) > 8
    assert all(is_sound(line) and json.loads(line) for line in lines)


def test_a_live_writer_is_no_fault(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        location = LocalLocation(tmp_path / "run1.zarr")
        for step in range(5):
            reader = RankReader(location, 0)
            put(writer, [record("h", step, floats(step)), record(f"t{step}", step, floats(1))])
            audit = RankAudit(location, reader)
            put(writer, [record(f"u{step}", step, floats(1))])
            assert list(audit.faults()) == []
            assert [audit.rows(*part).bad for part in audit.parts()] == [[]]
