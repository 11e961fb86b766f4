"""Collectors that are dead, die, or come back, behind lines that cut, swallow, and slow."""

from __future__ import annotations

import threading
import time

import pytest

from anchor_server import serve
from tests.delivery.lines import Proxy, check_store, free_port, numbered, sink_to, spools


def put_all(sink, count: int, most: int = 600, part: int = 10) -> None:
    for start in range(0, count, part):
        sink.put([numbered(n, most) for n in range(start, start + part)])


def test_a_collector_dead_from_the_start_gets_everything_when_it_comes(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    sink = sink_to(address, tmp_path / "spools")
    put_all(sink, 500)
    with serve(tmp_path / "store", address):
        sink.flush(20)
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
            sink.put([numbered(n) for n in range(start, start + 10)])
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
        began = time.monotonic()
        put_all(sink, 1000)
        assert time.monotonic() - began < 10  # a put never waits for the line
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
            sink.put([numbered(number, most)])
            if number % 7 == 3:
                line.cut()
        assert sink.close(30) == 0
    assert check_store(tmp_path / "store", 30, most) == 30


def _port(collector) -> int:
    return int(collector.address.rpartition(":")[2])
