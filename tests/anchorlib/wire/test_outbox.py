"""The writer's side of Push against a collector made of lists, on a line that breaks anywhere."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorlib.block import block_of
from anchorlib.errors import RunExistsError
from anchorlib.record import Coordinates, Gap, Record
from anchorlib.wire import (
    Decoder,
    Encoder,
    FrameError,
    GarbledError,
    Outbox,
    ParsedFrame,
    PushReply,
    StoredRange,
    parse_request,
)
from anchorlib.wire.messages.gaps import read_gaps
from anchorlib.wire.v1.collector_pb2 import Ack, Closed, Flushed, Resume
from tests.server.pushing import answer, record
from tests.writing import records_of


def add(outbox: Outbox, records: list[Record]) -> None:
    for frame in outbox.encode(block_of(records)):
        outbox.append(frame)


class ListCollector:
    """Keeps what arrives, in order, once; forgets a stream as a collector that is killed does."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.gaps: dict[str, int] = {}
        self.flushed: dict[int, int] = {}
        self.closed = False
        self.resume()

    @property
    def steps(self) -> list[int]:
        return [one.coordinates.step for one in self.records]

    def resume(self) -> PushReply:
        self.decoder = Decoder()
        self.frames = 0
        return PushReply(resume=Resume(committed=len(self.records)))

    def receive(self, message: bytes) -> PushReply | None:
        request = parse_request(message)
        if isinstance(request, ParsedFrame):
            return self._frame(request)
        match request.WhichOneof("message"):
            case "confirm":
                return answer(request.confirm, self.records)
            case "define":
                self.decoder.define(request.define)
            case "gaps":
                self.gaps |= {gap.name: gap.count for gap in read_gaps(request.gaps)}
            case "flush":
                self.flushed[request.flush.id] = len(self.records)
                return PushReply(flushed=Flushed(id=request.flush.id))
            case "close":
                self.closed = True
                return PushReply(closed=Closed(committed=len(self.records)))
        return None

    def _frame(self, request: ParsedFrame) -> PushReply:
        self.frames += 1
        for number, one in enumerate(records_of(self.decoder.block(request)), request.head.first):
            assert number <= len(self.records), "a gap in the sequence"
            if number == len(self.records):
                self.records.append(one)
        return PushReply(ack=Ack(committed=len(self.records), frames=self.frames))


class Line:
    """Carries messages and answers; what is under way when it breaks is lost."""

    def __init__(self, outbox: Outbox, collector: ListCollector) -> None:
        self.outbox, self.collector = outbox, collector
        self.there: deque[bytes] = deque()
        self.back: deque[PushReply] = deque()
        self.connect()

    def connect(self) -> None:
        self.there.clear()
        self.back.clear()
        self.outbox.restart()
        self.back.append(self.collector.resume())

    def send(self) -> bool:
        message = self.outbox.next()
        if message is not None:
            self.there.append(message)
        return message is not None

    def deliver(self) -> bool:
        if not self.there:
            return False
        reply = self.collector.receive(self.there.popleft())
        if reply is not None:
            self.back.append(reply)
        return True

    def answer(self) -> bool:
        if not self.back:
            return False
        self.outbox.take(self.back.popleft())
        return True

    def settle(self) -> None:
        while self.send() or self.deliver() or self.answer():
            pass


ACTIONS = [
    "put",
    "put",
    "put large",
    "gap",
    "flush",
    "send",
    "send",
    "deliver",
    "answer",
    "connect",
]


@pytest.mark.slow
@given(st.lists(st.sampled_from(ACTIONS), max_size=60), st.integers(1, 4))
def test_nothing_is_lost_or_doubled_however_often_the_line_breaks(actions, window):
    outbox, collector = Outbox(Encoder(frame_bytes=200), window=window), ListCollector()
    line = Line(outbox, collector)
    step = gaps = 0
    flushes: dict[int, int] = {}
    for action in actions:
        if action.startswith("put"):
            add(outbox, [record(step, 200 if "large" in action else 3), record(step + 1)])
            step += 2
        elif action == "gap":
            gaps += 1
            outbox.gap([Gap("fc1", "grad", "all", "queue full", gaps, 0, 0)])
        elif action == "flush":
            flushes[outbox.flush()] = step
        else:
            getattr(line, action)()
        assert outbox.waiting == step - outbox.committed >= step - len(collector.steps)
    outbox.close()
    line.settle()
    assert collector.steps == list(range(step))
    assert collector.gaps == ({"fc1": gaps} if gaps else {})
    assert collector.closed
    assert outbox.closed
    assert (outbox.waiting, outbox.nbytes) == (0, 0)
    assert outbox.flushed == max(flushes, default=0)
    for flush, before in flushes.items():
        # The last flush answers for those before it whose answers were lost.
        assert collector.flushed.get(flush, step) >= before


def test_no_more_than_a_window_of_frames_is_under_way():
    outbox = Outbox(Encoder(frame_bytes=100), window=3)
    add(outbox, [record(step) for step in range(10)])
    line = Line(outbox, ListCollector())
    line.answer()
    while line.send():
        pass
    frames = [m for m in line.there if isinstance(parse_request(m), ParsedFrame)]
    assert len(frames) == 3


def test_nothing_is_sent_before_the_collector_said_where_to_go_on():
    outbox = Outbox()
    add(outbox, [record(0)])
    outbox.close()
    assert outbox.next() is None


def test_frames_that_another_stream_delivered_are_not_sent_again():
    outbox, collector = Outbox(Encoder(frame_bytes=100)), ListCollector()
    add(outbox, [record(step) for step in range(3)])
    line = Line(outbox, collector)
    line.answer()
    while line.send() or line.deliver():
        pass
    line.connect()  # all answers are lost
    line.answer()
    while line.send():
        pass
    assert not [m for m in line.there if isinstance(parse_request(m), ParsedFrame)]
    assert outbox.waiting == 3  # what is said to be there is not believed before it is confirmed
    line.settle()
    assert (outbox.waiting, outbox.nbytes) == (0, 0)


@pytest.mark.parametrize("mark", [0, 5])
def test_a_mark_that_cannot_be_is_noticed(mark):
    outbox, collector = Outbox(), ListCollector()
    collector.records = [record(0)]
    add(outbox, [record(0), record(1)])
    line = Line(outbox, collector)
    while line.answer() or (outbox.committed < 1 and (line.send() or line.deliver())):
        pass
    assert outbox.committed == 1
    outbox.restart()
    with pytest.raises(FrameError, match="its store was changed"):
        outbox.take(PushReply(resume=Resume(committed=mark)))


def test_what_was_dropped_still_counts_as_waiting():
    outbox = Outbox()
    add(outbox, [record(0), record(1)])
    outbox.drop()
    assert (outbox.waiting, outbox.nbytes) == (2, 0)


def test_the_answer_to_close_acknowledges_what_came_just_before_it():
    outbox = Outbox()
    add(outbox, [record(0), record(1)])
    outbox.close()
    outbox.take(PushReply(resume=Resume()))
    while outbox.next():
        pass
    outbox.take(PushReply(closed=Closed(committed=2)))
    assert (outbox.waiting, outbox.nbytes, outbox.closed) == (0, 0, True)


@pytest.mark.parametrize("frame_bytes", [100, 1 << 20])
def test_records_that_are_not_those_held_are_never_let_go(frame_bytes):
    outbox, forger = Outbox(Encoder(frame_bytes=frame_bytes)), ListCollector()
    add(outbox, [record(step) for step in range(10)])
    forger.records = [record(step) for step in (0, 1, 2, 7)]
    line = Line(outbox, forger)
    with pytest.raises(RunExistsError, match="not those that are held here"):
        line.settle()
    assert (outbox.waiting, outbox.resumed) == (10, False)


@pytest.mark.slow
@given(st.integers(0, 9), st.sampled_from(["step", "order", "time_ns", "count", "name", "raw"]))
def test_a_record_that_differs_in_anything_is_not_the_record(number, field):
    outbox, collector = Outbox(), ListCollector()
    records = [record(step) for step in range(10)]
    add(outbox, records)
    others: dict[str, Any] = {
        "step": {"coordinates": Coordinates(99)},
        "order": {"order": 99},
        "time_ns": {"time_ns": 99},
        "count": {"count": 2},
        "name": {"name": "other"},
        "raw": {"raw": record(99).raw, "summary": record(99).summary},
    }
    records[number] = replace(records[number], **others[field])
    collector.records = records
    with pytest.raises(RunExistsError):
        Line(outbox, collector).settle()
    assert outbox.waiting == 10


@pytest.mark.parametrize("asks", [True, False])
def test_a_collector_that_asks_is_told_how_far_the_records_go(asks):
    outbox = Outbox()
    for step in range(20):
        add(outbox, [record(step)])
    assert outbox.next() is None
    outbox.take(PushReply(resume=Resume(committed=0, asks_backlog=asks)))
    said = []
    while (message := outbox.next()) is not None:
        request = parse_request(message)
        said.append("frame" if isinstance(request, ParsedFrame) else request.WhichOneof("message"))
        if said[-1] == "backlog":
            assert request.backlog.end == 20
    assert said.count("frame") == 20
    assert said.count("backlog") == (3 if asks else 0)
    if asks:
        assert said.index("backlog") < said.index("frame")


@pytest.mark.parametrize("last", ["flush", "close"])
def test_a_frame_that_is_lost_on_the_way_is_missed_before_anything_is_let_go(last):
    outbox, collector = Outbox(Encoder(frame_bytes=100)), ListCollector()
    add(outbox, [record(step) for step in range(3)])
    getattr(outbox, last)()
    line = Line(outbox, collector)
    line.answer()
    while line.send():
        pass
    frames = [m for m in line.there if isinstance(parse_request(m), ParsedFrame)]
    line.there.remove(frames[-1])
    while line.deliver():
        pass
    line.back.append(PushReply(ack=Ack(committed=2, frames=2)))  # what comes behind an answer
    with pytest.raises(GarbledError, match="never arrived there"):
        all(iter(line.answer, False))
    assert (outbox.waiting, outbox.flushed, outbox.closed) == (1, 0, False)
    line.connect()
    line.settle()
    assert (outbox.waiting, collector.steps) == (0, [0, 1, 2])


def test_who_follows_attempts_that_are_gone_sends_nothing():
    outbox = Outbox(earlier=[StoredRange(1, 0, 0)], attempt=3)
    add(outbox, [record(0)])
    with pytest.raises(FrameError, match="where attempt 3 was to be resumed"):
        outbox.take(PushReply(resume=Resume(committed=0, attempt=1)))
    assert outbox.next() is None
