"""Push against a dictionary: whatever a writer sends, resends, reorders, leaves out or restarts."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import grpc
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anchor_server import Collector
from anchorlib.block import block_of
from anchorlib.wire import EncodedFrame, Encoder
from tests.delivery.lines import numbered, told
from tests.seeds import examples
from tests.server.pushing import Pusher, stored


class PushMachine(RuleBasedStateMachine):
    """The collector is the real one; `model` says what it must have."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.model: dict[int, tuple[str, int, bytes]] = {}
        self.writer = os.urandom(16)
        self.encoder = Encoder(frame_bytes=3000)
        self.frames: list[tuple[int, EncodedFrame]] = []
        self.collector = Collector(self.folder, "127.0.0.1:0")
        self.collector.start()
        self.stream: Pusher | None = None
        self.connect()

    def connect(self) -> None:
        """A new stream; the collector says what it has, which is what the model has."""
        self.leave()
        self.stream = Pusher(self.collector.address, writer_id=self.writer)
        assert self.stream.reply().resume.committed == len(self.model)
        self.told_frames = 0

    def leave(self) -> None:
        if self.stream is not None:
            self.stream.cut()
            self.stream = None

    def make(self, count: int) -> None:
        """New frames, not sent yet."""
        first = self.encoder.sequence
        records = [numbered(n) for n in range(first, first + count)]
        for frame in self.encoder.encode(block_of(records)):
            self.frames.append((first, frame))
            first = frame.end

    def say(self, first: int, frame: EncodedFrame) -> None:
        """One frame, with the definitions it needs, as this stream numbers them."""
        assert self.stream is not None
        while self.stream._defined < frame.definitions:
            self.stream.send(self.encoder.definitions[self.stream._defined])
            self.stream._defined += 1
        self.stream.send(frame.message)
        self.model |= {n: told(numbered(n)) for n in range(first, frame.end)}

    def due(self) -> int:
        """The first frame that the collector has not got."""
        return next(
            (at for at, (_, frame) in enumerate(self.frames) if frame.end > len(self.model)),
            len(self.frames),
        )

    @rule(count=st.integers(1, 12))
    def send(self, count: int) -> None:
        self.make(count)
        for first, frame in self.frames[self.due() :]:
            self.say(first, frame)
        self.stream.acked(len(self.model))

    @rule(count=st.integers(1, 6), data=st.data())
    def resend(self, count: int, data: st.DataObject) -> None:
        if not self.frames[: self.due()]:
            return
        at = data.draw(st.integers(0, self.due() - 1))
        first = self.frames[at][0]
        if any(one == first for one, _ in self.frames[at + 1 :]) or (
            at and self.frames[at - 1][0] == first
        ):
            return  # a part of a record alone means nothing
        for first, frame in self.frames[at : min(at + count, self.due())]:
            self.say(first, frame)

    @rule(count=st.integers(2, 12))
    def reorder(self, count: int) -> None:
        """A frame that comes before its turn ends the stream, and is not written."""
        self.make(count)
        self.make(1)
        last = self.frames[-1]
        if self.frames[self.due()][0] == last[0]:
            return
        before = dict(self.model)
        self.say(*last)
        self.model = before
        code, _ = self.stream.refusal()
        assert code == grpc.StatusCode.OUT_OF_RANGE
        self.connect()

    @rule()
    def restart_the_stream(self) -> None:
        self.connect()

    @precondition(lambda self: self.model)
    @rule()
    def restart_the_collector(self) -> None:
        self.leave()
        self.collector.stop(2.0)
        self.collector = Collector(self.folder, "127.0.0.1:0")
        self.collector.start()
        self.connect()

    @invariant()
    def the_store_is_the_model(self) -> None:
        if getattr(self, "model", None) and len(self.model) == len(stored(self.folder)):
            assert stored(self.folder) == [self.model[n] for n in range(len(self.model))]

    def teardown(self) -> None:
        if hasattr(self, "collector"):
            self.leave()
            self.collector.stop(2.0)
            found = stored(self.folder) if self.model else []
            assert found == [self.model[n] for n in range(len(self.model))]
            shutil.rmtree(self.folder, ignore_errors=True)


TestPush = PushMachine.TestCase
TestPush.settings = settings(
    max_examples=examples(15),  # `test_protocol` goes through every state of a model
    stateful_step_count=12,
    suppress_health_check=list(HealthCheck),
)
