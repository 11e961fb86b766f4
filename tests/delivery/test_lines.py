"""Collectors that are dead, die, or come back, behind lines that cut, swallow, and slow."""

from __future__ import annotations

import random
import threading
import time

import pytest

from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.errors import CollectorError
from anchorlib.store import Writer
from anchorlib.wire import ReaderClient
from tests.anchorlib.store.auditing import faults
from tests.delivery.lines import Proxy, check_store, free_port, numbered, sink_to, spools
from tests.seeds import seeds
from tests.waiting import returned
from tests.writing import put


def put_all(sink, count: int, most: int = 600, part: int = 10) -> None:
    for start in range(0, count, part):
        sink.put(block_of([numbered(n, most) for n in range(start, start + part)]))


def test_a_collector_dead_from_the_start_gets_everything_when_it_comes(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    put_all(sink, 500)
    with serve(tmp_path / "store", address):
        sink.flush().wait(20)
        assert check_store(tmp_path / "store", 500) == 500
        assert sink.close(20) == 0
    assert spools(tmp_path / "spools") == []


def test_a_collector_that_dies_in_the_middle_and_comes_back_misses_nothing(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    puts = threading.Thread(target=put_all, args=(sink, 3000))
    puts.start()
    for _ in range(4):
        with serve(tmp_path / "store", address):
            time.sleep(0.15)
    puts.join()
    with serve(tmp_path / "store", address):
        assert sink.close(20) == 0
    assert check_store(tmp_path / "store", 3000) == 3000


def test_a_line_that_is_cut_again_and_again_doubles_nothing(tmp_path):
    with serve(tmp_path / "store") as collector, Proxy(_port(collector)) as line:
        sink = sink_to(line.address, tmp_path / "spools")
        for start in range(0, 1500, 10):
            sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
            if start % 150 == 0:
                time.sleep(0.02)
                line.cut()
        assert sink.close(30) == 0
        assert sink.retries
    assert check_store(tmp_path / "store", 1500) == 1500


def test_training_goes_on_beside_a_line_that_swallows_everything(tmp_path):
    with serve(tmp_path / "store") as collector, Proxy(_port(collector)) as line:
        line.mode = "blackhole"
        sink = sink_to(line.address, tmp_path / "spools")
        returned(lambda: put_all(sink, 1000))  # a put never waits for the line
        assert sink.waiting == 1000
        line.mode = "pass"
        line.cut()
        assert sink.close(30) == 0
    assert check_store(tmp_path / "store", 1000) == 1000


def test_a_slow_line_loses_nothing(tmp_path):
    with serve(tmp_path / "store") as collector, Proxy(_port(collector)) as line:
        line.mode = "slow"
        sink = sink_to(line.address, tmp_path / "spools")
        put_all(sink, 200, most=20_000)
        assert sink.close(30) == 0
    assert check_store(tmp_path / "store", 200, most=20_000) == 200


@pytest.mark.parametrize("fragments", [False, True])
def test_cuts_inside_large_records_leave_them_whole(tmp_path, fragments):
    most = 900_000 if fragments else 100_000
    with serve(tmp_path / "store") as collector, Proxy(_port(collector)) as line:
        sink = sink_to(line.address, tmp_path / "spools")
        for number in range(30):
            sink.put(block_of([numbered(number, most)]))
            if number % 7 == 3:
                line.cut()
        assert sink.close(30) == 0
    assert check_store(tmp_path / "store", 30, most) == 30


@pytest.mark.parametrize("seed", seeds(0, 1, 6))
def test_bits_that_flip_on_the_line_are_never_stored(tmp_path, seed):
    with (
        serve(tmp_path / "store") as collector,
        Proxy(_port(collector), random.Random(f"bits {seed}")) as line,
    ):
        sink = sink_to(line.address, tmp_path / "spools")
        for start in range(0, 1000, 10):
            if start % 50 == 0:
                line.flips = 2
            if start % 200 == 150:
                line.cut()  # a bit in the line's own frames can make either end wait
            sink.put(block_of([numbered(n) for n in range(start, start + 10)]))
            time.sleep(0.01)
        line.flips = 0
        line.cut()
        assert sink.close(30) == 0
        assert line.flipped > 2
        assert sink.retries
    assert check_store(tmp_path / "store", 1000) == 1000
    assert [path.name for path in (tmp_path / "store").glob("*.zarr")] == ["run1.zarr"]
    assert faults(tmp_path / "store") == []


def test_bits_that_flip_on_the_line_are_never_read(tmp_path):
    with Writer.open(tmp_path, "run1", 0) as writer:
        put(writer, [numbered(n) for n in range(40)])
    keys = ("run1.zarr/rank0/catalog/c.0", "run1.zarr/rank0/records/step/c.0")
    right = failed = 0
    with serve(tmp_path) as collector, Proxy(_port(collector), random.Random(5)) as line:
        for number in range(40):
            key = keys[number % 2]
            with ReaderClient(f"grpc://{line.address}", timeout=2) as reader:
                line.flips = 2
                try:
                    got = reader.get(key, 0, 4000), reader.list("run1.zarr")
                except CollectorError:
                    failed += 1
                    continue
            assert got == ((tmp_path / key).read_bytes()[:4000], ["rank0/", "zarr.json"])
            right += 1
    assert line.flipped > 20
    assert right > 5
    assert failed > 5


def _port(collector) -> int:
    return int(collector.address.rpartition(":")[2])
