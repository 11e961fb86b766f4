"""What a collector answers, and what is in its store afterwards."""

from __future__ import annotations

import random
import threading

import grpc
import numpy as np
import pytest

from anchor_server import serve
from anchorlib.block import block_of
from anchorlib.record import Gap
from anchorlib.store import LocalLocation, RankReader, Writer
from anchorlib.wire import (
    PROTOCOL,
    Credentials,
    Encoder,
    FailureKind,
    Hello,
    PushRequest,
    failure,
    open_channel,
    parse_address,
    sealed,
)
from anchorlib.wire.connection.services import push_call
from anchorlib.wire.messages.checksum import SEAL_BYTES, sealed_bytes
from anchorlib.wire.messages.gaps import gaps_message
from anchorlib.wire.v1.collector_pb2 import (
    Close,
    Columns,
    Define,
    Flush,
    Fragment,
    Frame,
    Layout,
    Lineage,
    Series,
)
from tests.server.pushing import WRITER, Pusher, expected, record, stored
from tests.writing import put

OTHER = b"o" * 16


def message(**fields) -> bytes:
    return sealed(PushRequest(**fields))


@pytest.fixture
def collector(tmp_path):
    with serve(tmp_path / "store") as collector:
        yield collector


@pytest.fixture
def push(collector):
    """Opens streams; those that are still open are cut at the end."""
    opened: list[Pusher] = []

    def open_stream(**hello) -> Pusher:
        opened.append(Pusher(collector.address, **hello))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.cut()


def test_what_was_acknowledged_is_in_the_store(collector, push):
    stream = push()
    assert stream.reply().resume.committed == 0
    records = [record(step) for step in range(100)]
    stream.push(*records)
    stream.acked(100)
    assert stored(collector.store) == expected(records)


def test_a_record_larger_than_a_frame_arrives_whole(collector, push):
    stream = push()
    records = [record(0), record(1, 3 * 2**18 + 1), record(2)]
    stream.push(*records)
    stream.acked(3)
    assert stored(collector.store) == expected(records)


def test_frames_are_acknowledged_although_their_record_is_not_whole_yet(push):
    stream = push()
    stream.push(record(0, 3 * 2**19))
    assert stream.reply().HasField("resume")
    replies = [stream.reply().ack]
    while replies[-1].committed != 1:
        replies.append(stream.reply().ack)
    assert replies[-1].frames == 6  # of a MiB each


def test_records_that_arrive_twice_are_written_once(collector, push):
    records = [record(step) for step in range(10)]
    first = push()
    first.push(*records[:6])
    first.acked(6)
    first.cut()
    second = push()
    assert second.reply().resume.committed == 6
    second.push(*records)
    second.acked(10)
    assert stored(collector.store) == expected(records)


def test_a_frame_of_which_a_part_is_known_gives_the_rest(collector, push):
    records = [record(step) for step in range(10)]
    first = push()
    for one in records[:3]:
        first.push(one)
    first.acked(3)
    first.cut()
    again = push()
    again.push(*records)  # one frame, of which three records were written
    again.acked(10)
    assert stored(collector.store) == expected(records)


def test_a_gap_in_the_sequence_is_refused(collector, push):
    stream = push()
    stream.push(record(0))
    stream.encoder.sequence = 5
    stream.push(record(5))
    assert stream.refusal() == (
        grpc.StatusCode.OUT_OF_RANGE,
        "record 5 came where 1 was due",
    )


def test_the_same_writer_takes_over_from_its_own_lost_stream(collector, push):
    lost, back = push(), None
    lost.push(record(0))
    lost.acked(1)
    back = push()
    assert back.reply().resume.committed == 1
    assert lost.refusal()[0] == grpc.StatusCode.ABORTED
    back.push(record(0), record(1))
    back.acked(2)
    assert [step for _, step, _ in stored(collector.store)] == [0, 1]


def test_a_second_writer_on_a_rank_is_refused_and_told_who_holds_it(collector, push):
    holder = push(writer="process 4242 on node7")
    holder.push(record(0))
    holder.acked(1)
    code, details = push(writer_id=OTHER, resume=True).refusal()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "process 4242 on node7" in details
    holder.push(record(1))
    holder.acked(2)


def test_a_rank_that_an_embedded_writer_holds_is_refused(collector, push):
    with Writer.open(collector.store, "run1", 0):
        code, details = push().refusal()
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "is being written by process" in details


def test_a_writer_that_died_leaves_the_rank_to_the_next(collector, push):
    dead = push()
    dead.push(record(0))
    dead.acked(1)
    dead.cut()
    heir = push(writer_id=OTHER, resume=True)
    assert heir.reply().resume.attempt == 1
    heir.push(record(1))
    heir.acked(1)
    assert [step for _, step, _ in stored(collector.store)] == [0, 1]


def test_a_run_that_exists_is_neither_resumed_nor_overwritten_unasked(collector, push):
    with Writer.open(collector.store, "run1", 0) as writer:
        put(writer, [record(0)])
    code, details = push().refusal()
    assert code == grpc.StatusCode.ALREADY_EXISTS
    assert "resume it, overwrite it" in details


def test_overwrite_does_not_strike_twice_when_the_stream_breaks(collector, push):
    with Writer.open(collector.store, "run1", 0) as writer:
        put(writer, [record(0)])
    first = push(overwrite=True)
    first.push(record(0))
    first.acked(1)
    first.cut()
    again = push(overwrite=True)
    assert again.reply().resume.committed == 1


def test_flush_publishes_for_every_zarr_reader(collector, push):
    zarr = pytest.importorskip("zarr")
    stream = push()
    stream.push(record(0), record(1))
    stream.send(message(flush=Flush(id=7)))
    while (reply := stream.reply()).WhichOneof("message") != "flushed":
        pass
    assert reply.flushed.id == 7
    array = zarr.open_array(collector.store / "run1.zarr/rank0/forms/float32_4/value", mode="r")
    assert array.shape == (2, 4)


def test_close_closes_the_rank_and_ends_the_stream(collector, push):
    stream = push()
    stream.push(record(0))
    stream.send(message(close=Close()))
    while (reply := stream.reply()).WhichOneof("message") != "closed":
        pass
    assert reply.closed.committed == 1
    assert stream.refusal()[0] == grpc.StatusCode.OK
    reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
    assert reader.catalogue.state == "closed"


def test_a_stream_that_ends_without_close_leaves_the_rank_open(collector, push):
    stream = push()
    stream.push(record(0))
    stream.acked(1)
    stream.cut()
    collector.stop()
    reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
    assert (reader.committed, reader.catalogue.state) == (1, "open")


def test_gaps_are_stored_the_newest_statement_winning(collector, push):
    stream = push()
    for count in (1, 5):
        told = Gap("fc1", "grad", "all", "queue full", count, 0, count)
        stream.send(message(gaps=gaps_message([told])))
    stream.push(record(0))
    stream.acked(1)
    reader = RankReader(LocalLocation(collector.store / "run1.zarr"), 0)
    assert list(reader.catalogue.gaps.values()) == [told]


def test_several_ranks_write_one_run_at_once(collector, push):
    records = [record(step) for step in range(200)]

    def write(rank: int) -> None:
        stream = push(rank=rank, writer_id=bytes([rank]) * 16)
        for start in range(0, 200, 10):
            stream.push(*records[start : start + 10])
        stream.acked(200)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(4):
        assert stored(collector.store, rank=rank) == expected(records)


def nested(depth: int) -> str:
    """A JSON object that is nested so deep."""
    return '{"a":' * depth + "1" + "}" * depth


HUGE = Layout(dtype="float64", shape=[2**20, 2**20])


@pytest.mark.parametrize(
    ("hello", "code", "words"),
    [
        ({"run": "../run1"}, "INVALID_ARGUMENT", "cannot name a run"),
        ({"run": ".anchor"}, "INVALID_ARGUMENT", "cannot name a run"),
        ({"run": "-x"}, "INVALID_ARGUMENT", "cannot name a run"),
        ({"rank": 2**32 - 1}, "INVALID_ARGUMENT", "a rank is"),
        ({"writer_id": b"short"}, "INVALID_ARGUMENT", "16 bytes"),
        ({"header": "[]"}, "INVALID_ARGUMENT", "no JSON object"),
        ({"header": "[" * 100_000}, "INVALID_ARGUMENT", "no JSON object"),
        ({"header": nested(65)}, "INVALID_ARGUMENT", "more than 64 deep"),
        ({"header": nested(900)}, "INVALID_ARGUMENT", "more than 64 deep"),
        ({"protocol": 99}, "FAILED_PRECONDITION", "upgrade the collector first"),
        ({"protocol": 1}, "FAILED_PRECONDITION", "where the training runs"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(push, hello, code, words):
    found, details = push(**hello).refusal()
    assert (found.name, "\n" in details) == (code, False)
    assert words in details


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([sealed_bytes(b"\xff\xff\xff")], "no PushRequest"),
        ([sealed_bytes(b"")], "a stream cannot send an empty request"),
        ([message(lineage=Lineage(header=nested(900)))], "more than 64 deep"),
        ([message(define=Define(series=[Series(name="", kind="grad", mode="all")]))], "1 to 1024"),
        ([message(define=Define(series=[Series(name="a", kind="x", mode="all")]))], "no kind"),
        ([message(define=Define(series=[Series(name="a", kind="grad", mode="x")]))], "mode"),
        ([message(define=Define(layouts=[Layout(dtype="float31")]))], "float31"),
        ([message(define=Define(layouts=[HUGE]))], "a record of 8796093022208 bytes"),
        ([message(define=Define(layouts=[Layout(dtype="bool", shape=[2**63, 2**63])]))], "shape"),
        ([message(define=Define(layouts=[Layout(dtype="bool", shape=[0, 2**50])]))], "shape"),
        ([message(define=Define(layouts=[Layout(dtype="bool", shape=[1] * 65)]))], "65 dimensions"),
        ([message(frame=Frame(columns=Columns(digest=b"d" * 16)))], "was not defined"),
        ([message(frame=Frame(columns=Columns(digest=b"d" * 17)))], "no multiple of 16"),
        (
            [message(frame=Frame(fragment=Fragment(total=2**40), payload=b"x"))],
            "no row of its own",
        ),
        (
            [message(frame=Frame(fragment=Fragment(total=8, offset=4), payload=b"x"))],
            "out of turn",
        ),
    ],
)
def test_what_no_encoder_sends_is_refused_and_the_others_are_unharmed(push, messages, words):
    good = push(rank=1, writer_id=OTHER)
    good.push(record(0))
    good.acked(1)
    bad = push()
    bad.send(*messages)
    code, details = bad.refusal()
    assert (code, "\n" in details) == (grpc.StatusCode.INVALID_ARGUMENT, False)
    assert words in details
    good.push(record(1))
    good.acked(2)


@pytest.mark.parametrize("payload", [b"", b"123", b"1" * 17])
def test_a_payload_that_does_not_fit_its_rows_is_refused(push, payload):
    stream = push()
    definitions = Define(
        series=[Series(name="a", kind="grad", mode="all")],
        layouts=[Layout(dtype="float32", shape=[4])],
        phases=["train"],
    )
    columns = Columns(digest=b"d" * 16)
    stream.send(message(define=definitions), message(frame=Frame(columns=columns, payload=payload)))
    assert stream.refusal() == (
        grpc.StatusCode.INVALID_ARGUMENT,
        f"a payload of {len(payload)} bytes; its rows have 16",
    )


def test_values_that_were_damaged_on_the_way_are_not_written(collector, push):
    stream = push()
    (frame,) = stream.encoder.encode(block_of([record(0)]))
    body = bytearray(frame.message[:-SEAL_BYTES])
    body[-1] ^= 1
    # As by memory that went bad before the message was sealed.
    stream.send(*stream.encoder.definitions, sealed_bytes(bytes(body)))
    code, details = stream.refusal()
    assert (code, stored(collector.store)) == (grpc.StatusCode.DATA_LOSS, [])
    assert "'fc1'@grad at step 0" in details


@pytest.mark.parametrize("which", ["hello", "define", "frame", "gaps", "flush", "close"])
def test_a_bit_that_flips_in_any_message_refuses_it_in_a_way_that_passes(collector, which):
    chance = random.Random(which)
    gap = gaps_message([Gap("fc1", "grad", "all", "line full", 7, 0, 1)])
    for _ in range(6):
        (frame,) = (encoder := Encoder()).encode(block_of([record(0)]))
        hello = Hello(protocol=PROTOCOL, run=which, rank=0, writer_id=WRITER)
        messages = {
            "hello": message(hello=hello),
            "define": encoder.definitions[0],
            "frame": frame.message,
            "gaps": message(gaps=gap),
            "flush": message(flush=Flush(id=1)),
            "close": message(close=Close()),
        }
        place = chance.randrange(8 * len(messages[which]))
        damaged = bytearray(messages[which])
        damaged[place // 8] ^= 1 << place % 8
        counted = collector.tally.damaged
        with open_channel(parse_address(f"grpc://{collector.address}"), Credentials()) as channel:
            replies = push_call(channel)(iter((messages | {which: bytes(damaged)}).values()))
            with pytest.raises(grpc.RpcError) as refused:
                list(replies)
        assert refused.value.code() == grpc.StatusCode.DATA_LOSS, place
        assert not failure(parse_address("grpc://h:1"), refused.value).kind.permanent
        assert collector.tally.damaged == counted + 1
    if which == "hello":
        assert not (collector.store / "hello.zarr").exists()
    else:
        rank = RankReader(LocalLocation(collector.store / f"{which}.zarr"), 0)
        assert rank.committed <= 1
        assert rank.catalogue.state == "open"
        assert (not rank.gaps()) == (which in ("define", "frame", "gaps"))


def test_a_full_house_turns_streams_away_and_still_answers_readers(tmp_path):
    from anchorlib.wire import ReaderClient

    with serve(tmp_path, max_streams=1) as collector, Pusher(collector.address) as inside:
        assert inside.reply().HasField("resume")  # the house is full before the next one knocks
        with (
            Pusher(collector.address, rank=1) as outside,
            ReaderClient(f"grpc://{collector.address}") as reader,
        ):
            assert outside.refusal()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reader.list() == ["run1.zarr/"]


def test_the_mark_survives_a_collector_that_never_stopped_properly(tmp_path):
    # The store is taken up by another collector as after kill -9: nothing was closed.
    records = [record(step) for step in range(8)]
    with Writer.open(tmp_path, "run1", 0, writer_id=WRITER) as dead:
        put(dead, records[:5])
        dead.abandon()
    with serve(tmp_path) as collector, Pusher(collector.address) as stream:
        assert stream.reply().resume.committed == 5
        stream.push(*records)
        stream.acked(8)
    assert stored(tmp_path) == expected(records)


def test_nothing_of_a_bad_stream_is_kept_in_memory_before_it_is_checked(push):
    # The row says 16 GiB less one, which this machine's numpy would reserve.
    stream = push()
    layout = Layout(dtype="uint8", shape=[2**34 - 1])
    stream.send(message(define=Define(layouts=[layout])))
    frame = Frame(columns=Columns(digest=b"d" * 16), fragment=Fragment(total=2**34), payload=b"x")
    stream.send(message(frame=frame))
    code, details = stream.refusal()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert details == f"record 0 has {2**34 - 1} bytes, not {2**34}"


def test_the_arrays_of_every_dtype_reach_the_store(collector, push):
    from anchorlib import dtypes
    from anchorlib.record import Coordinates, Record
    from anchorlib.summary import summarise

    def one(number: int, dtype: str) -> Record:
        storage = dtypes.dtype(dtype).storage
        raw = np.zeros((2, 1, 3), storage)
        summary = summarise(raw, dtype)
        at = Coordinates(number)
        return Record(dtype, "value", "all", at, number, 0, dtype, raw.shape, raw, summary)

    records = [one(number, dtype) for number, dtype in enumerate(dtypes.DTYPES)]
    stream = push()
    stream.push(*records)
    stream.acked(len(records))
    assert stored(collector.store) == expected(records)


def test_a_writer_that_another_has_overtaken_never_begins_anew(collector):
    other = b"o" * 16
    with Pusher(collector.address, resume=True) as stream:
        stream.push(record(0))
        stream.acked(1)
        stream.cut()  # as a line does that breaks before the writer hears of its record
    with Pusher(collector.address, resume=True, writer_id=other) as stream:
        assert stream.reply().resume.attempt == 1
    for hello in ({"resume": True}, {"overwrite": True}):
        with Pusher(collector.address, **hello) as stream:
            assert stream.kind() is FailureKind.STORE
    assert stored(collector.store) == expected([record(0)])
