"""How many files writers keep open: a bounded number, whatever they write."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest

from anchorlib.store import Writer
from anchorlib.store.slots import SHARED
from tests.anchorlib.store.records import assert_holds, floats, reader, record

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="Linux lists the open files"
)

TENSORS = 150
OPEN = Path("/proc/self/fd")


@pytest.fixture
def few_files():
    """The process may open 400 files; beyond those of now a quarter of them is ours."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    yield 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def chunk_files() -> int:
    """Chunk files of values that this process has open."""
    found = 0
    for descriptor in OPEN.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found += "/tensors/" in str(descriptor.readlink())
    return found


def test_all_writers_of_a_process_together_leave_it_three_quarters_of_its_files(
    tmp_path, few_files
):
    """And what they write is whole, though files are closed and opened again all the time."""
    writers = [Writer.open(tmp_path, "run1", rank) for rank in range(3)]
    recorded = {rank: [] for rank in range(3)}
    for step in range(4):
        for rank, writer in enumerate(writers):
            batch = [
                record(f"t{n}", step, floats(rank, n, step), order=step * TENSORS + n)
                for n in range(TENSORS)
            ]
            writer.write(batch)
            recorded[rank] += batch
        # A writer gives up what is beyond its share when it next opens a file.
        assert step == 0 or few_files / 2 < chunk_files() <= few_files
    for writer in writers:
        writer.close()
    assert chunk_files() == 0
    for rank, records in recorded.items():
        assert_holds(reader(tmp_path, rank=rank), records)


def test_a_writer_may_use_what_others_do_not(tmp_path, few_files):
    """The one beside it has ten tensors, not half of all."""
    with Writer.open(tmp_path, "run1", 0) as one, Writer.open(tmp_path, "run1", 1) as other:
        other.write([record(f"t{n}", 0, floats(1.0), order=n) for n in range(10)])
        one.write([record(f"t{n}", 0, floats(1.0), order=n) for n in range(TENSORS)])
        assert chunk_files() == few_files
    assert SHARED.allows(few_files - 1)
