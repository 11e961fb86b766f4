"""What was traced passes every sink, spool and copy."""

from __future__ import annotations

import pytest

from anchor_server import Collector
from anchorlib.errors import DamagedError
from anchorlib.operations import read_entries
from anchorlib.reading import open_run
from anchorlib.recorder import statement_placer, thread_queue
from anchorlib.recorder.statement_json import statement
from anchorlib.sinks import MemorySink, RunOptions, open_sink, push
from anchorlib.sinks.remote import RemoteSink
from anchorlib.spool.delivery import deliver
from anchorlib.wire.messages.lineage import operations_messages, read_operations
from anchorlib.wire.messages.malformed import FrameError
from anchorlib.wire.v1.collector_pb2 import Lineage

KEY = "0" * 32
STRUCTURE = {"structure": KEY, "ops": [{"op": "aten.sin.default", "stage": "forward"}]}


def row(step):
    told = {"step": step, "first": 0, "passes": [0], "structure": KEY, "digests": "", "floats": []}
    return {"row": told}


ENTRIES = [STRUCTURE, row(0), row(1)]


def steps(store, name="run1"):
    return [op.step for op in open_run(name, store).ops()]


@pytest.mark.parametrize("remote", [False, True])
def test_embedded_and_remote_sinks_keep_what_was_traced(tmp_path, remote):
    with Collector(tmp_path / "there", bind="127.0.0.1:0") as collector:
        store = tmp_path / ("there" if remote else "here")
        address = f"grpc://{collector.address}" if remote else str(store)
        sink = open_sink(address, RunOptions("run1", 0))
        sink.operations(ENTRIES)
        sink.operations(ENTRIES[:2])
        assert sink.close(20) == 0
        assert steps(address) == [0, 1]
    assert steps(store) == [0, 1]


@pytest.mark.parametrize("spooled_for", ["directory", "collector"])
def test_what_was_traced_waits_in_a_spool_for_its_store(tmp_path, spooled_for):
    sink = RemoteSink("grpc://127.0.0.1:1", RunOptions("run1", 0), spool=tmp_path / "spool")
    sink.operations(ENTRIES)
    sink.close(0)
    with Collector(tmp_path / "there", bind="127.0.0.1:0") as collector:
        to = (
            f"grpc://{collector.address}" if spooled_for == "collector" else str(tmp_path / "there")
        )
        deliver(sink.spool, to, patience=20, progress=lambda *_: None)
    assert steps(tmp_path / "there") == [0, 1]


def test_the_queue_passes_on_what_was_traced():
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=100_000, on_full="block")
    queue.operations(ENTRIES)
    queue.close(10)
    assert sink.traced == ENTRIES


def test_the_queue_passes_on_each_structure_whole_however_many_were_stated_before():
    def structure(number):
        return {"structure": f"{number:032x}", "ops": [{"op": f"aten.op{number}.default"}]}

    stated = [structure(number) for number in range(3 * statement_placer._STRUCTURES)]
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=100_000, on_full="block")
    for _trace in range(2):
        queue.operations([*stated, row(0)])
        queue.operations([stated[-1], row(1), stated[-1]])
    queue.close(10)
    assert sink.traced == [*stated, row(0), stated[-1], row(1), stated[-1]] * 2


def test_the_text_of_a_structure_is_made_once(monkeypatch):
    made = []
    monkeypatch.setattr(
        statement_placer, "statement", lambda *parts: made.append(parts[3]) or statement(*parts)
    )
    sink = MemorySink()
    queue = thread_queue(sink, limit_bytes=100_000, on_full="block")
    for _trace in range(3):
        queue.operations([STRUCTURE, row(0)])
    queue.close(10)
    assert sink.traced == [STRUCTURE, row(0)] * 3
    assert made.count([STRUCTURE]) == 1


def test_a_copied_run_has_what_was_traced(tmp_path):
    quietly = {"patience": 20, "progress": lambda *_: None}
    for resume in (False, True):
        sink = open_sink(str(tmp_path / "here"), RunOptions("run1", 0, resume=resume))
        sink.operations(ENTRIES)
        sink.close(10)
    for _again in range(2):
        push("run1", str(tmp_path / "there"), str(tmp_path / "here"), **quietly)
    copied, original = (open_run("run1", tmp_path / one) for one in ("there", "here"))
    assert copied.ops() == original.ops()
    assert [op.attempt for op in copied.ops()] == [1, 1]


@pytest.mark.slow
def test_messages_of_entries_are_small_and_read_back():
    many = [STRUCTURE, *map(row, range(20_000))]
    messages = list(operations_messages(many))
    assert len(messages) > 1
    assert max(message.ByteSize() for message in messages) < 1 << 20
    read = [entry for message in messages for entry in read_operations(message)]
    assert len(read_entries(read)) == 20_000


@pytest.mark.parametrize("text", ["", "3", "[]", "{}", '{"row": 3}', "[" * 10_000, "{" * 6])
def test_a_collector_refuses_what_is_no_entry(text):
    with pytest.raises(FrameError):
        read_operations(Lineage(operations=[text]))


def test_a_log_that_speaks_of_what_it_does_not_hold_is_damage(tmp_path):
    sink = open_sink(str(tmp_path), RunOptions("run1", 0))
    sink.operations([row(0)])
    sink.close(10)
    with pytest.raises(DamagedError, match="rank 0 of run1"):
        open_run("run1", tmp_path).ops()
