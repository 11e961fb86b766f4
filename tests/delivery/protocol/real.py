"""The program itself, moved as the model moves: real spools, outboxes, ranks, streams and stores.

Nothing here runs by itself: there is no thread of ours and no line. What the model sends as one
request is a bundle of messages (definitions go before the frame that needs them).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from pathlib import Path
from typing import Any

from anchor_server.counters import CollectorCounters
from anchor_server.fragment_memory import FragmentMemory
from anchor_server.limits import NO_LIMITS
from anchor_server.rank_holders import RankHolders, RankLease
from anchor_server.refusal_counts import Caller
from anchor_server.stream import RankStream
from anchor_server.stream_registry import StreamEntry
from anchor_server.tokens import ALL_RIGHTS, EVERY_RUN, Grant
from anchorlib.block import block_of
from anchorlib.errors import AnchorError, RunExistsError
from anchorlib.spool import make_spool
from anchorlib.spool.dead_spool import SpoolContent
from anchorlib.spool.delivery import _Draining, deliver
from anchorlib.spool.destination import Destination
from anchorlib.spool.spools import OwnedSpool, WrittenSpool
from anchorlib.spool.stored_attempts import past_attempts
from anchorlib.store import LocalLocation, RankReader, Writer, remove_run, run_directory
from anchorlib.wire import (
    PROTOCOL,
    Ack,
    Decoder,
    Encoder,
    Hello,
    Outbox,
    ParsedFrame,
    PushReply,
    PushRequest,
    Resume,
    parse_request,
    sealed,
)
from tests.delivery.lines import numbered
from tests.delivery.protocol.states import OTHER, WINDOW, Frame, Last, State

RUN = "run1"
_OTHERS = 900  # the number of the first record of somebody else
_GRANT = Grant("", ALL_RIGHTS, (EVERY_RUN,))


class Session:
    """A writer: its spool, and the outbox that it will speak through."""

    def __init__(self, place: Path, store: Path, secret: bytes, *, resume: bool) -> None:
        self.hello = Hello(
            protocol=PROTOCOL, run=RUN, rank=0, writer_id=secret, resume=resume, header="{}"
        )
        self.encoder = Encoder()
        self.spool: WrittenSpool = make_spool(place, self.hello, str(store), segment_bytes=1)
        frames = self.spool.connect(self.encoder, [], threading.Condition())
        self.outbox = Outbox(self.encoder, window=WINDOW, frames=frames)

    def put(self, rows: tuple[int, ...]) -> None:
        for frame in self.outbox.encode(block_of([numbered(row) for row in rows])):
            self.spool.frames.store(frame, more=False)
            self.outbox.append(frame)

    def die(self) -> None:
        self.spool._close()
        self.spool._work.release()


class Delivery:
    """The delivery of a spool that was left; raises RunExistsError where it may not begin there."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._work = OwnedSpool.take(folder)
        try:
            self._content = SpoolContent(self._work, Destination(str(store)), threading.Condition())
            self.hello = self._content.hello(past_attempts(RUN, 0, str(store)))
        except BaseException:
            self._work.release()
            raise
        self.outbox: Outbox = _Draining(self._content)
        self.outbox._window = WINDOW

    def finish(self) -> None:
        self._content.finish()

    def die(self) -> None:
        self._content.frames.close()
        self._work.release()


class Served:
    """One stream at the collector, from its hello on."""

    def __init__(self, ranks: RankHolders, hello: Hello) -> None:
        self._stack = contextlib.ExitStack()
        given = (hello, Caller("ipv4:127.0.0.1:1"), _GRANT, lambda _: None)
        self._held: RankLease = self._stack.enter_context(ranks.hold(*given))
        seat = StreamEntry(RUN, 0, "here", 0)
        self._stream = RankStream(
            self._held, Decoder(), FragmentMemory(), CollectorCounters(), seat
        )

    @property
    def resume(self) -> PushReply:
        writer = self._held.writer
        return PushReply(resume=Resume(committed=writer.committed, attempt=writer.attempt))

    def deal(self, bundle: list[bytes]) -> list[PushReply]:
        """Deal with a request as PushService does."""
        replies = list(self._stream.replies(bundle))
        if not self._stream.closed:
            ack = Ack(committed=self._stream.committed, frames=self._stream.frames)
            replies.append(PushReply(ack=ack))
        return replies

    def die(self, bundle: list[bytes] | None = None, rows: int = 0) -> None:
        """As kill -9 of the collector does it, with some new rows of a frame in the store."""
        if bundle:
            list(self._stream.replies(bundle[:-1]))
            framed = parse_request(bundle[-1])
            assert isinstance(framed, ParsedFrame)
            block = self._stream._decode(framed)
            assert block is not None
            new = block.after(self._stream.committed - framed.head.first)
            self._held.writer.write_block(next(iter(new.cut([0, rows]))))
        self._held.writer.abandon()
        self.end()

    def end(self) -> None:
        self._stack.close()


class Real:
    """All of it, below `folder`; `move` does what the model did."""

    def __init__(self, folder: Path, first: State) -> None:
        self._folder = folder
        self._store = folder / "store"
        limits = {"fsync": False, "max_bytes": None, "limits": NO_LIMITS, "patience": 0.0}
        self._ranks = RankHolders(self._store, **limits)  # type: ignore[arg-type]
        self._sessions: dict[int, Session] = {}
        self._folders: list[Path] = []
        self._says: Session | Delivery | None = None
        self._asleep: Session | Delivery | None = None
        self._requests: deque[list[bytes]] = deque()
        self._replies: deque[list[PushReply]] = deque()
        self._serving: Served | None = None
        self._old: tuple[deque[list[bytes]], Served] | None = None
        self._start(first)

    def move(self, name: str, about: int, before: State, after: State) -> None:
        """One step; `before` and `after` are the model's."""
        method = getattr(self, "_" + name.replace(" ", "_"), None)
        if method is not None:
            method(before, after, about)
        if after.line is None and before.line is not None and name != "connect":
            self._hang_up(keep=after.old is not None)
        if after.old is None and self._old is not None:
            self._old[1].end()
            self._old = None
        self._settle(before, after)

    def _settle(self, before: State, after: State) -> None:
        """End the parties that have ended in the model."""
        for number, session in list(self._sessions.items()):
            asleep = after.asleep is not None and after.asleep.live
            if number == after.live or (asleep and after.asleep.spool == number):
                continue
            gone = after.spools[number] is None
            closed = not gone and after.spool(number).closed and not before.spool(number).closed
            end = session.spool.remove if gone else session.spool.leave if closed else session.die
            end()
            del self._sessions[number]
        says = self._says
        if says is None or after.outbox is not None:
            return
        if isinstance(says, Delivery):
            assert before.outbox is not None
            done = after.spools[before.outbox.spool] is None
            if done:
                assert says.outbox.closed
                says.finish()
            elif self._asleep is not says:
                says.die()
        self._says = None

    # -- the writer

    def _start(self, after: State) -> None:
        number = len(after.spools) - 1
        told = after.spool(number)
        place = self._folder / ("near" if told.near else f"far{number}")
        session = Session(place, self._store, told.secret, resume=told.resume)
        self._sessions[number] = session
        self._folders.append(session.spool.folder)

    def _begin(self, before: State, after: State, _: int) -> None:
        self._start(after)

    def _put(self, before: State, after: State, _: int) -> None:
        number = len(after.spools) - 1
        self._sessions[number].put(after.spool(number).frames[-1].rows)

    def _speak(self, before: State, after: State, number: int) -> None:
        self._says = self._sessions[number]

    def _push(self, before: State, after: State, number: int) -> None:
        self._says = Delivery(self._folders[number], self._store)

    _deliver = _push

    def _skip(self, before: State, after: State, number: int) -> None:
        with contextlib.suppress(RunExistsError):
            Delivery(self._folders[number], self._store)
            raise AssertionError("it may begin there")

    def _nothing_waits(self, before: State, after: State, number: int) -> None:
        deliver(self._folders[number], str(self._store), patience=5, progress=lambda *_: None)

    def _push_under_another_name(self, before: State, after: State, number: int) -> None:
        other = str(self._folder / f"other{number}")
        deliver(self._folders[number], other, patience=5, progress=lambda *_: None, run="other")

    def _sleep(self, before: State, after: State, _: int) -> None:
        self._asleep, self._says = self._says, None

    def _wake(self, before: State, after: State, _: int) -> None:
        self._says, self._asleep = self._asleep, None

    def _close(self, before: State, after: State, _: int) -> None:
        self._outbox.close()

    # -- the line

    @property
    def _outbox(self) -> Outbox:
        assert self._says is not None
        return self._says.outbox

    def _connect(self, before: State, after: State, _: int) -> None:
        assert self._says is not None
        self._outbox.restart()
        hello = Hello()
        hello.CopyFrom(self._says.hello)
        hello.acknowledged = max(hello.acknowledged, self._outbox.committed)
        self._requests, self._replies, self._serving = deque(), deque(), None
        self._requests.append([sealed(PushRequest(hello=hello))])

    def _send(self, before: State, after: State, _: int) -> None:
        assert after.line is not None
        wanted = after.line.requests[-1]
        bundle: list[bytes] = []
        while (message := self._outbox.next()) is not None:
            bundle.append(message)
            framed = parse_request(message)
            is_frame = isinstance(framed, ParsedFrame)
            if is_frame or framed.WhichOneof("message") == "confirm":
                break
        assert bundle
        assert isinstance(parse_request(bundle[-1]), ParsedFrame) is isinstance(wanted, Frame)
        self._requests.append(bundle)

    def _hear(self, before: State, after: State, _: int) -> None:
        with contextlib.suppress(AnchorError):  # the model says what comes of it
            for reply in self._replies.popleft():
                self._outbox.take(reply)
            self._outbox.tidy()

    def _hang_up(self, *, keep: bool) -> None:
        serving, self._serving = self._serving, None
        if serving is not None and keep:
            self._old = self._requests, serving
        elif serving is not None:
            serving.end()
        self._requests, self._replies = deque(), deque()

    # -- the collector

    def _serve(self, before: State, after: State, _: int) -> None:
        bundle = self._requests.popleft()
        try:
            if self._serving is None:
                request: Any = parse_request(bundle[0])
                self._serving = Served(self._ranks, request.hello)
                self._replies.append([self._serving.resume])
                return
            replies = self._serving.deal(bundle)
        except Exception:  # a refusal of any kind, where the model has one
            if after.line is not None:
                raise
            return
        assert before.line is not None
        last = isinstance(before.line.requests[0], Last)
        self._replies += [replies] if last else [[reply] for reply in replies]

    def _serve_old(self, before: State, after: State, _: int) -> None:
        assert self._old is not None
        requests, serving = self._old
        with contextlib.suppress(Exception):
            serving.deal(requests.popleft())

    def _collector_is_killed(self, before: State, after: State, rows: int) -> None:
        if self._serving is not None:
            self._serving.die(self._requests[0] if rows else None, rows)
        if self._old is not None:
            self._old[1].die()
        self._serving = self._old = None

    _killed_amid_rows = _collector_is_killed

    def _taken_away(self, before: State, after: State, rows: int) -> None:
        remove_run(self._store, RUN)
        if rows:
            with Writer.open(self._store, RUN, 0, writer_id=b"another writer's") as writer:
                writer.write_block(block_of([numbered(_OTHERS + row) for row in range(rows)]))

    # -- what there is

    def attempts(self) -> list[tuple[int, ...]]:
        """The rows of each attempt in the store."""
        if not run_directory(self._store, RUN).exists():
            return []
        reader = RankReader(LocalLocation(run_directory(self._store, RUN)), 0)
        steps = [int(step) for step in reader.column("step")[: reader.committed]]
        rows = [OTHER if step >= _OTHERS else step for step in steps]
        firsts = [one.first_row for one in reader.catalogue.attempts]
        ends = [*firsts[1:], len(rows)]
        return [tuple(rows[first:end]) for first, end in zip(firsts, ends, strict=True)]

    def files(self, number: int) -> list[int]:
        """The first number of each file of a spool."""
        names = sorted(path.name for path in self._folders[number].glob("*.seg"))
        return [int(name.split(".")[1]) for name in names]

    def check(self, state: State) -> None:
        """Check that the real parties are in the state that the model says."""
        assert self.attempts() == [one.rows for one in state.attempts]
        for number, spool in enumerate(state.spools):
            if spool is None:
                assert not self._folders[number].exists()
                continue
            held = [first for first in self.files(number) if first < spool.end]
            assert held == [frame.first for frame in spool.frames]
        if state.outbox is not None and not state.outbox.refused:
            mine = (self._outbox.committed, self._outbox.resumed)
            assert mine == (state.outbox.committed, state.outbox.resumed)

    def close(self) -> None:
        """End all parties."""
        for one in (self._serving, self._old[1] if self._old else None):
            if one is not None:
                one.end()
        for session in self._sessions.values():
            session.die()
        for says in {self._says, self._asleep}:
            if isinstance(says, Delivery):
                says.die()
