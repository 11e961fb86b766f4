"""How many files writers keep open: a bounded number, whatever they write."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from anchorlib.store import Writer
from anchorlib.store.write import register
from anchorlib.store.write.open_files import MOST_OPEN
from tests.anchorlib.store.records import assert_holds, filled, reader, record
from tests.writing import put

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="Linux lists the open files"
)

SHAPES = 150
OPEN = Path("/proc/self/fd")


def chunk_files(store: Path) -> int:
    """Chunk files of values and labels in `store` that this process has open."""
    found = 0
    for descriptor in OPEN.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            path = str(descriptor.readlink())
            found += path.startswith(f"{store}/") and "/forms/" in path
    return found


@pytest.mark.slow
def test_a_writer_keeps_few_files_open_however_many_shapes_it_goes_round(tmp_path, monkeypatch):
    """And what it writes is whole, though files are closed and opened again all the time."""
    monkeypatch.setattr(register, "FORM_RECORDS", 2)  # each soon has an array of its own
    records, most = [], 0
    with Writer.open(tmp_path, "run1", 0) as writer:
        for step in range(6):
            batch = [
                record(f"t{n}", step, filled("float32", (n + 1,), n), order=step * SHAPES + n)
                for n in range(SHAPES)
            ]
            records += batch
            put(writer, batch)
            writer.publish()
            most = max(most, chunk_files(tmp_path))
    assert most == MOST_OPEN
    assert chunk_files(tmp_path) == 0
    found = reader(tmp_path)
    assert len(found.catalogue.forms) > SHAPES
    assert_holds(found, records)
