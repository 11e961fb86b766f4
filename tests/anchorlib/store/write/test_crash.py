"""kill -9 at any moment: what was acknowledged is there, what is seen is whole."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

from anchorlib.store import RankReader, Writer
from anchorlib.summary import digest
from tests.anchorlib.store.records import assert_holds, floats, reader, record
from tests.writing import put

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("crashing.py")
ROOT = Path(__file__).parents[4]


def run_and_kill(store: Path, seed: int, after: float) -> int:
    """Lets the writer run for `after` seconds; returns how many records it acknowledged."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(store), str(seed)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"o"
        time.sleep(after)
        process.kill()
        lines = process.stdout.read().split(b"\n")
    return int(lines[-2]) if len(lines) > 1 else 0


def check_rows(found: RankReader) -> None:
    """Every committed row has the values that its digest was made of."""
    rows = np.arange(found.committed)
    assert found.column("seq").tolist() == list(range(1, found.committed + 1))
    for row in rows[found.kept(rows)].tolist():
        said = f"{found.cell('digest_high', row):016x}{found.cell('digest_low', row):016x}"
        assert digest(found.raw(row)).hex() == said


def check_foreign(run: Path, committed: int) -> None:
    """zarr-python reads every array of the hierarchy, and no row that was never committed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank = zarr.open_group(run / "rank0", mode="r")
        for path, node in rank.members(max_depth=None):
            if isinstance(node, zarr.Array):
                node[...]
                if path.startswith("records/") and "hist" not in path:
                    assert node.shape[0] <= committed


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_kill_9_loses_nothing_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    random.seed(seed)
    acknowledged = 0
    for trial in range(4):
        acknowledged = max(
            acknowledged, run_and_kill(tmp_path, 10 * seed + trial, random.uniform(0.01, 0.25))
        )
        found = reader(tmp_path)
        assert found.committed >= acknowledged
        check_rows(found)
        check_foreign(tmp_path / "run1.zarr", found.committed)
        acknowledged = found.committed
    with Writer.open(tmp_path, "run1", 0, writer_id=b"crash") as writer:
        assert writer.committed == acknowledged
        put(writer, [record("after", 0, floats(1, 2))])
    found = reader(tmp_path)
    check_rows(found)
    check_foreign(tmp_path / "run1.zarr", found.committed)
    values = zarr.open_array(tmp_path / "run1.zarr/rank0/forms/flat_float32/value", mode="r")
    assert values[-2:].tolist() == [1.0, 2.0]


def table(store: Path) -> Path:
    return store / "run1.zarr" / "rank0"


def test_rows_behind_a_hole_in_seq_are_never_believed(tmp_path: Path) -> None:
    # A power loss may keep a later page of a file and lose an earlier one.
    batches = [[record("x", step, floats(step, 1)) for step in range(4)] for _ in range(2)]
    writer = Writer.open(tmp_path, "run1", 0, writer_id=b"one")
    put(writer, batches[0])
    writer.abandon()
    seq = table(tmp_path) / "records" / "seq" / "c.0"
    numbers = np.fromfile(seq, "<u8")
    numbers[2] = 0
    seq.write_bytes(numbers.tobytes())
    assert reader(tmp_path).committed == 2
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one") as writer:
        assert writer.committed == 2
        put(writer, batches[1][:1])
        assert reader(tmp_path).committed == 3
    assert_holds(reader(tmp_path), batches[0][:2] + batches[1][:1])


def test_a_catalogue_line_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    records = [record(f"t{i}", i, floats(i)) for i in range(3)]
    writer = Writer.open(tmp_path, "run1", 0, writer_id=b"one")
    put(writer, records)
    writer.abandon()
    catalog = table(tmp_path) / "catalog" / "c.0"
    text = catalog.read_bytes()
    end = text.index(b"\0")
    torn = b'{"series":3,"name":"half'
    catalog.write_bytes(text[:end] + torn + text[end + len(torn) :])
    assert_holds(reader(tmp_path), records)
    more = [record(f"u{i}", i, floats(i)) for i in range(3)]
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one") as writer:
        put(writer, more)
    assert_holds(reader(tmp_path), records + more)


def test_rows_whose_series_was_lost_are_never_believed(tmp_path: Path) -> None:
    records = [record("x", 0, floats(1)), record("lost", 0, floats(2)), record("x", 1, floats(3))]
    writer = Writer.open(tmp_path, "run1", 0, writer_id=b"one")
    put(writer, records[:1])
    put(writer, records[1:])
    writer.abandon()
    catalog = table(tmp_path) / "catalog" / "c.0"
    text = catalog.read_bytes()
    end = text.index(b'{"series":1')
    catalog.write_bytes(text[:end].ljust(len(text), b"\0"))
    assert_holds(reader(tmp_path), records[:1])
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one") as writer:
        assert writer.committed == 1
        put(writer, records[1:])
    assert_holds(reader(tmp_path), records)


def test_a_node_without_a_catalogue_line_is_made_anew(tmp_path: Path) -> None:
    Writer.open(tmp_path, "run1", 0).close()
    stale = table(tmp_path) / "forms" / "float32_2" / "value"
    stale.mkdir(parents=True)
    for folder in (stale, stale.parent):
        (folder / "zarr.json").write_text('{"zarr_format":3,"node_type":"group","attributes":{}}')
    (stale / "c.0.0").write_bytes(b"stale")
    records = [record("x", 0, floats(1, 2))]
    with Writer.open(tmp_path, "run1", 0, resume=True) as writer:
        put(writer, records)
    assert_holds(reader(tmp_path), records)
    assert zarr.open_array(stale, mode="r")[:].tolist() == [[1.0, 2.0]]


def test_with_fsync_everything_is_written_the_same(tmp_path: Path) -> None:
    records = [record(f"t{i % 3}", i, floats(*range(i % 3 + 1))) for i in range(9)]
    records.append(record("large", 0, np.ones(1 << 17, "<f4")))
    with Writer.open(tmp_path, "run1", 0, fsync=True) as writer:
        put(writer, records)
        writer.publish()
    assert_holds(reader(tmp_path), records)
