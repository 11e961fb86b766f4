"""Who may write a rank, and where the next one goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anchorlib.errors import (
    InvalidNameError,
    OptionError,
    RunBusyError,
    RunExistsError,
    StoreError,
)
from anchorlib.store import LocalLocation, RunReader, Within, Writer
from tests.anchorlib.store.records import assert_holds, floats, reader, record, written
from tests.writing import put


def test_a_rank_that_exists_is_not_written_again_by_accident(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1))])
    with pytest.raises(RunExistsError, match="resume"):
        Writer.open(tmp_path, "run1", 0)


def test_a_rank_without_a_record_is_refused_too_and_told_how_to_go_on(tmp_path: Path) -> None:
    Writer.open(tmp_path, "run1", 0).close()
    with pytest.raises(RunExistsError, match="resume=True or overwrite=True of start"):
        Writer.open(tmp_path, "run1", 0)


def test_another_rank_joins_the_run_at_any_time(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1))], rank=0)
    written(tmp_path, [record("x", 0, floats(2))], rank=3)
    assert reader(tmp_path, rank=3).raw(0).tolist() == [2.0]


def test_a_live_writer_is_named_by_the_refusal(tmp_path: Path) -> None:
    with (
        Writer.open(tmp_path, "run1", 0),
        pytest.raises(RunBusyError) as refusal,
    ):
        Writer.open(tmp_path, "run1", 0, overwrite=True)
    assert str(os.getpid()) in str(refusal.value)
    assert socket.gethostname() in str(refusal.value)


def test_each_resume_is_one_more_attempt_and_order_goes_on(tmp_path: Path) -> None:
    batches = [[record("x", step, floats(step), order=step) for step in range(3)]] * 3
    for number, batch in enumerate(batches):
        with Writer.open(tmp_path, "run1", 0, resume=True, header={"try": number}) as writer:
            assert writer.attempt == number
            assert writer.committed == 0
            put(writer, batch)
            assert writer.committed == 3
    found = reader(tmp_path)
    assert_holds(found, [one for batch in batches for one in batch])
    assert found.column("attempt").tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found.column("order").tolist() == list(range(9))
    assert [attempt.header["try"] for attempt in found.catalogue.attempts] == [0, 1, 2]


def test_what_the_header_gains_is_the_attempts_own_and_outlives_its_writer(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0, header={"a": 1, "b": 1}, writer_id=b"one") as first:
        first.header({"b": 2, "c": float("nan")})
        with pytest.raises(OptionError, match="JSON"):
            first.header({"b": object()})
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one") as again:
        end = again._catalog.end
        again.header({"b": 2})  # said already
        assert again._catalog.end == end
        again.header({"d": 4})
    with Writer.open(tmp_path, "run1", 0, resume=True, header={"a": 2}) as second:
        second.header({"b": 5})
    attempts = reader(tmp_path).catalogue.attempts
    assert [one.header for one in attempts] == [
        {"a": 1, "b": 2, "c": None, "d": 4},
        {"a": 2, "b": 5},
    ]


def test_a_writer_that_comes_back_continues_its_own_attempt(tmp_path: Path) -> None:
    first = Writer.open(tmp_path, "run1", 0, writer_id=b"one")
    put(first, [record("x", 0, floats(1))])
    first.abandon()
    # Whatever else it asks: it is the same stream, and its records are there.
    with Writer.open(tmp_path, "run1", 0, writer_id=b"one", overwrite=True) as again:
        assert (again.attempt, again.committed) == (0, 1)
        put(again, [record("x", 1, floats(2), order=1)])
    with Writer.open(tmp_path, "run1", 0, writer_id=b"two", resume=True) as other:
        assert (other.attempt, other.committed) == (1, 0)
        put(other, [record("x", 2, floats(3), order=0)])
    assert reader(tmp_path).column("order").tolist() == [0, 1, 2]


def test_overwriting_removes_this_rank_alone(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path, [record("x", 0, floats(rank)), record("y", 0, floats(5))], rank=rank)
    with Writer.open(tmp_path, "run1", 0, overwrite=True) as writer:
        assert writer.attempt == 0
        put(writer, [record("z", 0, floats(7))])
    assert [entry.name for entry in reader(tmp_path).catalogue.series] == ["z"]
    assert reader(tmp_path, rank=1).raw(0).tolist() == [1.0]
    assert list((tmp_path / ".anchor" / "tmp").iterdir()) == []


def break_catalogue(store: Path, old: bytes, new: bytes) -> None:
    path = store / "run1.zarr" / "rank0" / "catalog" / "c.0"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def test_a_catalogue_that_is_damaged_is_one_line_and_may_be_overwritten(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1))])
    break_catalogue(tmp_path, b'"series":0', b'"series":7')
    for act in (lambda: reader(tmp_path), lambda: Writer.open(tmp_path, "run1", 0, resume=True)):
        with pytest.raises(StoreError, match="catalogue of rank 0 is damaged"):
            act()
    with Writer.open(tmp_path, "run1", 0, overwrite=True) as writer:
        put(writer, [record("y", 0, floats(2))])
    assert_holds(reader(tmp_path), [record("y", 0, floats(2))])


def test_a_run_of_a_later_format_is_not_guessed_at(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1))])
    break_catalogue(tmp_path, b'"version":2', b'"version":3')
    with pytest.raises(StoreError, match=r"format 3.*a newer anchorlib"):
        reader(tmp_path)


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    with Writer.open(tmp_path, "run1", 0) as writer:
        writer._pid += 1  # as it looks from a child
        with pytest.raises(StoreError, match="forked"):
            put(writer, [record("x", 0, floats(1))])
        writer.close()
    assert reader(tmp_path).catalogue.state == "open"


def test_the_state_is_open_until_the_writer_closes(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path, "run1", 0)
    assert reader(tmp_path).catalogue.state == "open"
    writer.abandon()
    assert reader(tmp_path).catalogue.state == "open"
    Writer.open(tmp_path, "run1", 0, resume=True).close()
    assert reader(tmp_path).catalogue.state == "closed"
    writer = Writer.open(tmp_path, "run1", 0, resume=True)
    assert reader(tmp_path).catalogue.state == "open"
    writer.close()


def test_what_killed_writers_left_is_swept_after_a_day(tmp_path: Path) -> None:
    written(tmp_path, [record("x", 0, floats(1))])
    litter = tmp_path / ".anchor" / "tmp"
    (litter / "old-file").write_text("")
    (litter / "old-folder" / "value").mkdir(parents=True)
    (litter / "new-file").write_text("")
    for name in ("old-file", "old-folder"):
        os.utime(litter / name, (0, 0))
    Writer.open(tmp_path, "run1", 1).close()
    assert [path.name for path in litter.iterdir()] == ["new-file"]


def test_a_reader_knows_whether_a_writer_lives(tmp_path: Path) -> None:
    run = RunReader(LocalLocation(tmp_path / "run1.zarr"), "run1")
    with Writer.open(tmp_path, "run1", 0):
        assert run.is_live(0) is True
    assert run.is_live(0) is False
    assert run.is_live(5) is False
    assert RunReader(Within(LocalLocation(tmp_path), "run1.zarr"), "run1").is_live(0) is None


def test_asking_for_life_does_not_stand_in_a_writers_way(tmp_path: Path) -> None:
    Writer.open(tmp_path, "run1", 0).close()
    run = RunReader(LocalLocation(tmp_path / "run1.zarr"), "run1")
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            run.is_live(0)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(10):
            Writer.open(tmp_path, "run1", 0, resume=True).close()
    finally:
        done.set()
        asker.join()


@pytest.mark.slow
def test_a_dead_writer_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from anchorlib.store import Writer;"
        "Writer.open(pathlib.Path(sys.argv[1]), 'run1', 0); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    Writer.open(tmp_path, "run1", 0, resume=True).close()


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_rank(tmp_path: Path) -> None:
    code = """
import os, sys, pathlib, time
from anchorlib.store import Writer
writer = Writer.open(pathlib.Path(sys.argv[1]), "run1", 0)
if os.fork() == 0:
    sys.stdout.close()
    os.close(1)
    time.sleep(30)
print("forked", flush=True)
time.sleep(0.2)
os._exit(9)
"""
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.read() == b"forked\n"
    try:
        Writer.open(tmp_path, "run1", 0, resume=True).close()
    finally:
        os.killpg(parent.pid, 9)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "x" * 65, "a\n"])
def test_a_run_name_that_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError):
        Writer.open(tmp_path, name, 0)


def test_a_rank_is_a_number_that_is_not_negative(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="rank"):
        Writer.open(tmp_path, "run1", -1)


def test_a_header_keeps_what_json_can_hold(tmp_path: Path) -> None:
    header = {"torch": "2.13", "lr": float("nan"), "seen": [1, (2, 3)], 5: None}
    Writer.open(tmp_path, "run1", 0, header=header).close()
    kept = reader(tmp_path).catalogue.attempts[0].header
    assert kept == {"torch": "2.13", "lr": None, "seen": [1, [2, 3]], "5": None}
    with pytest.raises(OptionError, match="JSON"):
        Writer.open(tmp_path, "run2", 0, header={"model": object()})
    assert not (tmp_path / "run2.zarr").exists()


def test_a_store_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "anchors"
    path.write_text("no directory")
    with pytest.raises(StoreError, match="anchors"):
        Writer.open(path, "run1", 0)
