"""The spool as a session sees it: while it records, when it closes, when it is refused."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.errors import OptionError
from anchorlib.store import LocalLocation, RankReader
from tests.anchorlib.spool.spooling import (
    segments,
    warnings_in,
)
from tests.delivery.lines import (
    check_store,
    free_port,
    numbered,
    push,
    sink_to,
    spools,
)
from tests.waiting import returned, until


@pytest.fixture
def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.slow
def test_a_close_leaves_the_spool_and_one_line_that_delivers_it(tmp_path, nowhere, caplog):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put(block_of([numbered(n) for n in range(50)]))
    assert sink.close(0.2) == 0
    (folder,) = spools(tmp_path / "spools")
    line = warnings_in(caplog)[-1]
    assert f"`anchor push {folder} --to grpc://{nowhere}`" in line
    assert "50 records of run run1 did not reach" in line
    assert sum("anchor push" in text for text in warnings_in(caplog)) == 1
    push(folder, tmp_path / "store")
    reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
    assert (check_store(tmp_path / "store", 50), reader.catalogue.state) == (50, "closed")
    assert dict(reader.catalogue.attempts[0].header) == {"seed": 1}


@pytest.mark.slow
def test_a_close_that_waits_says_so_once_where_nobody_sees_a_bar(tmp_path, nowhere, caplog):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put(block_of([numbered(0)]))
    sink.close(1.5)
    waits = [text for text in warnings_in(caplog) if "waits up to" in text]
    assert waits == [f"anchorlib: closing run run1 waits up to 1.5 s for 1 record to reach "
                     f"grpc://{nowhere}"]  # fmt: skip


@pytest.mark.slow
def test_a_close_that_waits_for_the_collector_alone_names_no_records(tmp_path, nowhere, caplog):
    sink_to(nowhere, tmp_path / "spools").close(1.5)
    waits = [text for text in warnings_in(caplog) if "waits up to" in text]
    assert waits == [f"anchorlib: closing run run1 waits up to 1.5 s for grpc://{nowhere} to close "
                     "it"]  # fmt: skip


@pytest.mark.slow
def test_a_delivered_session_leaves_nothing_on_disk(tmp_path):
    with serve(tmp_path / "store") as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        for start in range(0, 400, 10):
            sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 400) == 400
    assert spools(tmp_path / "spools") == []


def test_a_refusal_keeps_the_spool_and_warns_once(tmp_path, caplog):
    with serve(tmp_path / "store", token="secret-token") as collector:
        sink = sink_to(collector.address, tmp_path / "spools")
        until(lambda: bool(sink._sender.refusal))
        sink.put(block_of([numbered(n) for n in range(20)]))
        assert returned(lambda: sink.close(3600)) == 0
    lines = [text for text in warnings_in(caplog) if "anchor push" in text]
    assert len(lines) == 1
    assert "the token is missing or wrong" in lines[0]
    (folder,) = spools(tmp_path / "spools")
    assert push(folder, tmp_path / "other").records == 20


@pytest.mark.slow
def test_a_full_spool_drops_values_then_everything_and_counts_both(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "200kB")
    sink = sink_to(nowhere, tmp_path / "spools")
    records = [numbered(n, 4000) for n in range(1500)]
    for one in records:
        sink.put(block_of([one]))
    assert sum(file.stat().st_size for file in segments(sink.spool)) < 230_000
    dropped = sink.dropped
    with serve(tmp_path / "store", nowhere):
        assert sink.close(30) == 0
    reader = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0)
    bare = int((reader.column("flags") & 1).sum())
    assert reader.committed + (dropped - bare) == 1500
    by_reason: dict[str, int] = {}
    for gap in reader.catalogue.gaps.values():
        by_reason[gap.reason] = by_reason.get(gap.reason, 0) + gap.count
    assert by_reason == {"line full: values dropped": bare, "line full": dropped - bare}
    assert bare
    assert dropped > bare


@pytest.mark.slow
def test_a_full_spool_that_is_only_left_states_its_gaps_too(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "100kB")
    sink = sink_to(nowhere, tmp_path / "spools")
    for number in range(800):
        sink.put(block_of([numbered(number, 4000)]))
    dropped = sink.dropped
    sink.close(0.1)
    push(sink.spool, tmp_path / "store")
    gaps = RankReader(LocalLocation(tmp_path / "store/run1.zarr"), 0).catalogue.gaps.values()
    assert sum(gap.count for gap in gaps) == dropped


@pytest.mark.slow
def test_block_waits_until_the_spool_has_room(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "100kB")
    sink = sink_to(nowhere, tmp_path / "spools", on_full="block")
    blocks = [block_of([numbered(n, 9000)]) for n in range(100)]
    puts = threading.Thread(target=lambda: [sink.put(block) for block in blocks])
    puts.start()
    puts.join(0.3)
    assert puts.is_alive()
    with serve(tmp_path / "store", nowhere):
        puts.join(30)
        assert not puts.is_alive()
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 100, 9000) == 100


def test_where_no_spool_can_be_made_records_wait_in_memory(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with serve(tmp_path / "store") as collector:
        sink = sink_to(collector.address, tmp_path / "file/spools")
        sink.put(block_of([numbered(0)]))
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 1) == 1
    (warning,) = warnings_in(caplog)
    assert "no spool can be made" in warning
    assert "set ANCHOR_SPOOL" in warning


@pytest.mark.parametrize("fsync", [True, False])
def test_a_collector_that_promises_less_than_was_asked_for_is_told_of_once(tmp_path, caplog, fsync):
    with serve(tmp_path / "store", fsync=fsync) as collector:
        sink = sink_to(collector.address, tmp_path / "spools", durability="power")
        for number in range(5):
            sink.put(block_of([numbered(number)]))
            sink.flush().wait(20)
        sink.close(20)
    lines = [text for text in warnings_in(caplog) if "--durability power" in text]
    assert len(lines) == (0 if fsync else 1)


def test_a_bad_limit_is_an_error_of_the_user(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_SPOOL_LIMIT", "lots")
    with pytest.raises(OptionError, match="ANCHOR_SPOOL_LIMIT='lots'"):
        sink_to(nowhere, tmp_path / "spools")
    assert spools(tmp_path / "spools") == []


def test_the_spool_is_the_owners_alone(tmp_path, nowhere):
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put(block_of([numbered(0)]))
    for path in [tmp_path / "spools", sink.spool, *segments(sink.spool), sink.spool / "lock"]:
        assert path.stat().st_mode & 0o077 == 0, path
    sink.close(0)


def test_the_spools_header_holds_no_token(tmp_path, nowhere, monkeypatch):
    monkeypatch.setenv("ANCHOR_TOKEN", "secret-token-1")
    sink = sink_to(nowhere, tmp_path / "spools")
    sink.put(block_of([numbered(0)]))
    sink.close(0)
    for path in sink.spool.iterdir():
        assert b"secret-token-1" not in path.read_bytes()


@pytest.mark.slow
def test_the_spool_is_no_dependency_of_the_import():
    code = (
        "import sys, anchorlib.sinks, anchorlib.spool; "
        "print(sorted({'grpc', 'zarr', 'torch'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
