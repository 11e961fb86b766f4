"""A run that is moved or removed while it is being written."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import anchorlib
from anchor_cli.main import main
from anchorlib import StoreError
from tests.server.pushing import record
from tests.waiting import until
from tests.writing import put

SMALL, LARGE = 10, 300_000  # values in files that stay open, and in files of their own


def take_steps(session, start, stop, size):
    for step in range(start, stop):
        anchorlib.anchor(torch.full((size,), float(step)), f"h{step % 3}")
        session.step()


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("how", ["moved", "removed"])
def test_what_follows_is_counted_told_of_once_and_written_nowhere(
    tmp_path, caplog, capsys, how, size
):
    run, moved = tmp_path / "run1.zarr", tmp_path / "run2.zarr"
    with anchorlib.start("run1", store=tmp_path) as session:
        take_steps(session, 0, 30, size)
        session.flush()
        run.rename(moved) if how == "moved" else shutil.rmtree(run)
        take_steps(session, 30, 50, size)
        with pytest.raises(StoreError, match="recorded into it: start another run") as told:
            session.flush()
        assert f"run 'run1' was {how} while" in str(told.value)
        assert (str(moved) in str(told.value)) == (how == "moved")
    assert (session.counters.records, session.counters.dropped) == (30, 20)
    assert session.counters.gaps == 3
    lines = [one.getMessage() for one in caplog.records if "recorded into it" in one.getMessage()]
    assert len(lines) == 1
    assert "start another run" in lines[0]
    assert not run.exists()
    if how == "moved":
        assert main(["verify", "run2", "--store", str(tmp_path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["records"], told["damaged"]) == (30, [])


def test_a_run_that_is_moved_before_its_end_is_told_of_at_the_end(tmp_path, caplog):
    with anchorlib.start("run1", store=tmp_path) as session:
        take_steps(session, 0, 3, SMALL)
        session.flush()
        (tmp_path / "run1.zarr").rename(tmp_path / "run2.zarr")
    assert caplog.text.count("was moved while") == 1
    assert anchorlib.open_run("run2", tmp_path).state == "open"
    assert not (tmp_path / "run1.zarr").exists()


@pytest.mark.slow
def test_a_run_that_is_put_back_goes_on(tmp_path, capsys):
    run, moved = tmp_path / "run1.zarr", tmp_path / "run2.zarr"
    with anchorlib.start("run1", store=tmp_path) as session:
        for start, here in ((0, True), (10, False), (20, True)):
            if here and moved.exists():
                moved.rename(run)
            elif not here:
                run.rename(moved)
            take_steps(session, start, start + 10, SMALL)
            until(lambda done=start + 10: session._queue.handed_over == done)
    assert (session.counters.records, session.counters.dropped) == (20, 10)
    steps = [
        step
        for name in ("h0", "h1", "h2")
        for step in anchorlib.open_run("run1", tmp_path)[f"{name}@value"].columns["step"].tolist()
    ]
    assert sorted(steps) == [*range(10), *range(20, 30)]
    assert main(["verify", "run1", "--store", str(tmp_path)]) == 3
    assert "was moved while rank 0 was recorded into it" in capsys.readouterr().out


def test_another_run_of_the_same_name_is_not_written_by_the_first(tmp_path):
    with anchorlib.start("run1", store=tmp_path) as session:
        take_steps(session, 0, 3, SMALL)
        session.flush()
        shutil.rmtree(tmp_path / "run1.zarr")
        shutil.rmtree(tmp_path / ".anchor")
        with anchorlib.store.Writer.open(tmp_path, "run1", 0) as other:
            put(other, [record(0)])
        take_steps(session, 3, 6, SMALL)
    assert session.counters.dropped == 3
    assert [one.name for one in anchorlib.open_run("run1", tmp_path).tensors()] == ["fc1"]
    assert main(["verify", "run1", "--store", str(tmp_path)]) == 0


def test_a_training_that_changes_its_directory_records_on(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with anchorlib.start("run1", store="anchors") as session:
        take_steps(session, 0, 3, LARGE)
        monkeypatch.chdir(tmp_path / "elsewhere")
        take_steps(session, 3, 9, LARGE)
    assert session.counters.records == 9
    assert len(anchorlib.open_run("run1", tmp_path / "anchors")["h0@value"]) == 3
