"""A collector's run that is moved or removed while a session records into it."""

from __future__ import annotations

import shutil

import pytest

from anchor_cli.main import main
from anchor_server import serve
from anchorlib.block import block_of
from tests.delivery.lines import check_store, eventually, numbered, sink_to


@pytest.fixture(params=["moved", "removed"])
def how(request) -> str:
    return request.param


def lose(store, how: str) -> None:
    if how == "moved":
        (store / "run1.zarr").rename(store / "kept.zarr")
    else:
        shutil.rmtree(store / "run1.zarr")


@pytest.mark.parametrize("restarted", [False, True])
def test_the_rest_stays_in_the_spool_and_no_empty_run_is_made(tmp_path, caplog, how, restarted):
    store = tmp_path / "store"
    with serve(store) as collector:
        address = collector.address
        sink = sink_to(address, tmp_path / "spools")
        sink.put(block_of([numbered(n) for n in range(30)]))
        sink.flush().wait(30)
        if not restarted:
            lose(store, how)
            _meets_nothing(sink)
    if restarted:
        lose(store, how)
        with serve(store, address):
            _meets_nothing(sink)
    sink.close(1)
    assert not (store / "run1.zarr").exists()
    line = f"anchor push {sink.spool} --to grpc://{address}"
    assert sum(line in one.getMessage() for one in caplog.records) == 1
    assert "was moved, removed, or recorded anew" in caplog.text
    name = "kept" if how == "moved" else "rest"
    with serve(store, address):
        assert main(["push", str(sink.spool), "--to", f"grpc://{address}", "--as", name]) == 0
    # Where its records are the writer goes on; elsewhere all that the spool still holds is brought.
    assert check_store(store, 50, run=name) == 50
    assert not sink.spool.exists()


def _meets_nothing(sink) -> None:
    sink.put(block_of([numbered(n) for n in range(30, 50)]))
    with eventually(60) as now:
        while not sink._sender.refusal:
            assert now()


def test_the_rest_is_delivered_under_the_same_name_when_asked(tmp_path):
    store = tmp_path / "store"
    with serve(store) as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        sink.put(block_of([numbered(n) for n in range(30)]))
        sink.flush().wait(30)
        lose(store, "removed")
        _meets_nothing(sink)
        sink.close(1)
        assert main(["push", str(sink.spool), "--to", f"grpc://{collector.address}"]) == 0
    assert check_store(store, 50) == 50
