"""`anchor push`: what it says, what it answers, what it leaves."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import numpy as np
import pytest

import anchorlib
from anchor_cli.main import main
from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.record import Edges, Gap
from anchorlib.store import LocalLocation, RankReader, Writer
from tests.delivery.lines import check_store, free_port, numbered, sink_to, spools
from tests.server.pushing import stored
from tests.writing import put


@pytest.fixture
def left(tmp_path):
    """A spool that a trainer left."""
    sink = sink_to(f"127.0.0.1:{free_port()}", tmp_path / "spools")
    for start in range(0, 100, 10):
        sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
    sink.close(0)
    (folder,) = spools(tmp_path / "spools")
    return folder


def test_a_spool_is_delivered_to_a_directory(tmp_path, left, capsys):
    assert main(["push", str(left), "--to", str(tmp_path / "store")]) == 0
    told = capsys.readouterr().out
    assert told == f"run1: 100 records delivered to {tmp_path / 'store'}, 0 were there\n"
    assert check_store(tmp_path / "store", 100) == 100
    assert not left.exists()
    assert main(["names", "run1", "--store", str(tmp_path / "store")]) == 0


def test_a_spool_is_delivered_to_a_collector(tmp_path, left, capsys):
    with serve(tmp_path / "store") as collector:
        to = f"grpc://{collector.address}"
        assert main(["push", str(left), "--to", to, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "to": to, "run": "run1", "rank": 0, "records": 100, "already": 0, "lost": 0, "set_aside": 0
    }  # fmt: skip
    assert check_store(tmp_path / "store", 100) == 100


def test_a_collector_that_is_not_there_is_exit_code_4_and_the_spool_stays(left, capsys):
    to = f"grpc://127.0.0.1:{free_port()}"
    assert main(["push", str(left), "--to", to]) == 4
    assert "is `anchor serve` running there" in capsys.readouterr().err
    assert left.exists()


def test_a_spool_of_a_live_session_is_exit_code_2_with_its_owner(tmp_path, capsys):
    sink = sink_to(f"127.0.0.1:{free_port()}", tmp_path / "spools")
    sink.put(block_of([numbered(0)]))
    assert main(["push", str(sink.spool), "--to", str(tmp_path / "store")]) == 2
    assert f"on {socket.gethostname()}, which is alive" in capsys.readouterr().err
    sink.close(0)


def test_neither_spool_nor_run_is_exit_code_2(tmp_path, capsys):
    assert main(["push", str(tmp_path / "nothing"), "--to", str(tmp_path / "store")]) == 2
    assert main(["push", "run1", "--store", str(tmp_path), "--to", str(tmp_path / "x")]) == 2
    assert "no run 'run1'" in capsys.readouterr().err


def test_a_damaged_spool_is_exit_code_3_and_says_what_was_lost(tmp_path, left, capsys):
    (segment,) = left.glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert main(["push", str(left), "--to", str(tmp_path / "store"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["set_aside"] == 1
    assert told["records"] + told["lost"] == 100
    assert len(stored(tmp_path / "store")) == told["records"]
    assert [path.suffix for path in left.glob("0*")] == [".bad"]
    # Once more: nothing is left to deliver, and nothing changes.
    assert main(["push", str(left), "--to", str(tmp_path / "store")]) in (0, 2, 3)
    assert len(stored(tmp_path / "store")) == told["records"]


def test_what_is_left_of_an_attempt_that_was_followed_by_another_comes_as_one_more(tmp_path, left):
    """Nothing is doubled and nothing lost, though the run went on elsewhere in between."""
    store = tmp_path / "store"
    hello = json.loads((left / "spool.json").read_text())
    mine = bytes.fromhex(hello["writer_id"])
    with Writer.open(store, "run1", 0, writer_id=mine) as writer:
        put(writer, [numbered(n) for n in range(40)])
    with Writer.open(store, "run1", 0, resume=True) as writer:
        put(writer, [numbered(n) for n in range(1000, 1010)])
    with serve(store) as collector:
        assert main(["push", str(left), "--to", f"grpc://{collector.address}"]) == 0
    steps = [step for _, step, _ in stored(store)]
    assert steps == [*range(40), *range(1000, 1010), *range(40, 100)]


def test_a_spool_that_would_overwrite_something_newer_is_not_delivered(tmp_path, capsys):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools", overwrite=True)
    sink.put(block_of([numbered(0)]))
    sink.close(0)
    with Writer.open(tmp_path / "store", "run1", 0) as writer:
        put(writer, [numbered(5)])
    assert main(["push", str(sink.spool), "--to", str(tmp_path / "store")]) == 2
    assert "recorded anew since" in capsys.readouterr().err
    assert [step for _, step, _ in stored(tmp_path / "store")] == [5]


def test_what_earlier_attempts_left_is_delivered_first(tmp_path, capsys):
    address = f"127.0.0.1:{free_port()}"
    for attempt in range(3):
        sink = sink_to(address, tmp_path / "spools", resume=attempt > 0)
        sink.put(block_of([numbered(n) for n in range(attempt * 10, attempt * 10 + 10)]))
        sink.close(0)
    assert main(["push", str(sink.spool), "--to", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().err.count("first, which is older") == 2
    assert check_store(tmp_path / "store", 30) == 30
    assert spools(tmp_path / "spools") == []


# -- runs


@pytest.fixture
def source(tmp_path):
    """A run of two attempts, with a gap, lineage, several shapes and a summary without values."""
    store = tmp_path / "source"
    with Writer.open(store, "run1", 0, header={"try": 0}) as writer:
        put(writer, [numbered(n) for n in range(30)])
        writer.gap([Gap("fc1", "grad", "all", "queue full", 2, 3, 4)])
        writer.edges([Edges("fc1", "train", 0, 0, (4,))])
    with Writer.open(store, "run1", 0, resume=True, header={"try": 1}) as writer:
        put(writer, [numbered(n) for n in range(20, 50)])
    with Writer.open(store, "run1", 3) as writer:
        put(writer, [numbered(n) for n in range(5)])
    return store


def shape_of(store, rank: int):
    reader = RankReader(LocalLocation(store / "run1.zarr"), rank)
    catalogue = reader.catalogue
    every = np.arange(reader.committed)
    return (
        [(dict(one.header), one.first_row, one.order_base) for one in catalogue.attempts],
        catalogue.gaps,
        catalogue.edges,
        catalogue.state,
        [reader.column(name).tolist() for name in ("order", "time_ns", "count", "attempt")],
        [(one.bins, one.numel) for one in reader.histograms(every)],
        stored(store, rank=rank),
    )


@pytest.mark.parametrize("remote", [False, True])
def test_a_copied_run_is_the_run(tmp_path, source, capsys, remote):
    store = tmp_path / "copy"
    with serve(store) as collector:
        to = f"grpc://{collector.address}" if remote else str(store)
        for already in (0, 65):
            assert main(["push", "run1", "--store", str(source), "--to", to, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == {
                "to": to, "run": "run1", "ranks": [0, 3], "records": 65, "already": already
            }  # fmt: skip
    for rank in (0, 3):
        assert shape_of(store, rank) == shape_of(source, rank)
    assert main(["verify", "run1", "--store", str(store)]) == 3  # the gap is there too


def test_a_copy_that_was_cut_short_goes_on(tmp_path, source):
    store = tmp_path / "copy"
    assert main(["push", str(source / "run1.zarr"), "--to", str(store)]) == 0
    with Writer.open(source, "run1", 0, resume=True) as writer:
        put(writer, [numbered(n) for n in range(60, 70)])
    assert main(["push", str(source / "run1.zarr"), "--to", str(store)]) == 0
    assert shape_of(store, 0) == shape_of(source, 0)


def test_another_run_of_the_same_name_is_never_mixed_in(tmp_path, source, capsys):
    store = tmp_path / "copy"
    with Writer.open(store, "run1", 0) as writer:
        put(writer, [numbered(7)])
    assert main(["push", "run1", "--store", str(source), "--to", str(store)]) == 2
    assert "another recording" in capsys.readouterr().err
    assert [step for _, step, _ in stored(store)] == [7]


def test_values_that_were_not_kept_stay_a_summary(tmp_path):
    with Writer.open(tmp_path / "source", "run1", 0) as writer:
        put(writer, [replace(numbered(n), raw=None) for n in range(5)])
    source, copy = str(tmp_path / "source"), str(tmp_path / "b")
    assert main(["push", "run1", "--store", source, "--to", copy]) == 0
    for store in ("source", "b"):
        run = anchorlib.open_run("run1", tmp_path / store)
        assert [run.histogram(f"{info.name}@grad").numel for info in run.tensors()]
    with pytest.raises(anchorlib.AnchorError):
        run.series(run.tensors()[0].name, "grad").values()
