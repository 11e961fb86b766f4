"""The rules of delivery, one method each; a planted fault overrides the rule that it breaks.

Each method names the program's code for its rule. Code that needs no disk and no line is called.
"""

from __future__ import annotations

from anchorlib.claims import claim_of
from anchorlib.spool.stored_attempts import Heir, PastAttempt, heir_among
from anchorlib.wire import FailureKind, StoredRange
from tests.delivery.protocol.states import (
    WINDOW,
    Attempt,
    Confirm,
    Confirmed,
    Done,
    Frame,
    Hello,
    Last,
    Outbox,
    Request,
    Resume,
    Spool,
    State,
)


class Rules:
    """The rules as the program has them."""

    # -- the collector: anchor_server ranks, stream; anchorlib.store.write.rank_opening

    def admit(
        self, attempts: tuple[Attempt, ...], hello: Hello
    ) -> tuple[Attempt, ...] | FailureKind:
        """The attempts that there are once a writer was let in, or why he is not (Place.take)."""
        mine = claim_of(hello.secret)
        same = bool(attempts) and attempts[-1].claim == mine
        if hello.acknowledged and not same:
            return FailureKind.STORE
        if self.is_overtaken(attempts, mine):
            return FailureKind.STORE
        if attempts and not (same or hello.resume):
            return FailureKind.EXISTS
        return attempts if same else (*attempts, Attempt(mine))

    def is_overtaken(self, attempts: tuple[Attempt, ...], mine: bytes) -> bool:
        """Whether another attempt was made since: the writer goes on as its own heir alone."""
        return any(one.claim == mine for one in attempts[:-1]) and attempts[-1].claim != mine

    def new_rows(self, due: int, frame: Frame) -> tuple[int, ...] | FailureKind:
        """What of a frame the store has not got (Stream._frame)."""
        if frame.first > due:
            return FailureKind.SEQUENCE
        return frame.rows[due - frame.first :]

    def is_written_first(self) -> bool:
        """Whether a frame is in the store before it is acknowledged (Stream.replies)."""
        return True

    def waits_for(self, old: object) -> bool:
        """Whether a stream begins only when the one before it is over (Ranks._take)."""
        return old is not None

    # -- the writer: anchorlib.wire.outbox, anchorlib.wire.holding

    def questions(self, outbox: Outbox, spool: Spool, said: Resume) -> tuple[Confirm, ...]:
        """What has to be confirmed before anything is let go of (holding.unconfirmed_ranges)."""
        known = min([outbox.committed, *(first for _, first, _ in outbox.links)])
        links = (*outbox.links, (said.attempt, 0, said.committed))
        asked = []
        for frame in spool.frames:
            first = self.place(outbox, spool, frame.first)
            if first + len(frame.rows) <= known:  # it was confirmed before
                continue
            for attempt, begin, end in links:
                start, stop = max(begin, first), min(end, first + len(frame.rows))
                if start < stop:
                    rows = frame.rows[start - first : stop - first]
                    asked.append(Confirm(attempt, start - begin, stop - begin, rows))
        return tuple(asked)

    def is_confirmed(self, asked: Confirm, answer: Confirmed) -> bool:
        """Whether the store has what is held (Questions.take)."""
        return asked.rows == answer.rows

    def believes(self, outbox: Outbox, spool: Spool, said: Resume) -> bool:
        """Whether that can be what the collector has (Outbox._resume)."""
        end = self.place(outbox, spool, spool.end)
        return outbox.committed <= said.committed and (said.committed <= end or not outbox.live)

    def counts_early(self) -> bool:
        """Whether acknowledgements count before what was there is confirmed (Outbox.take)."""
        return False

    def next_request(self, outbox: Outbox, spool: Spool) -> Request | None:
        """What is said next (Outbox.next)."""
        if not outbox.resumed:
            free = outbox.doubts and len(outbox.asked) < WINDOW
            return outbox.doubts[0] if free else None
        for frame in spool.frames:
            end = self.place(outbox, spool, frame.end)
            if end > outbox.at:
                if outbox.sent - outbox.told >= WINDOW:
                    return None
                return Frame(end - len(frame.rows), frame.rows)
        return Last(spool.closed or outbox.live) if self.may_end(outbox) else None

    def may_end(self, outbox: Outbox) -> bool:
        """Whether Last is due, every frame being sent."""
        return outbox.ends and not outbox.said_last

    # -- the spool: anchorlib.spool: spooled_frames, segments, dead_spool, stored_attempts

    def place(self, outbox: Outbox, spool: Spool, number: int) -> int:
        """A record's number on the wire (Holes.to_wire)."""
        return number - spool.hole - outbox.base

    def kept(self, spool: Spool, number: int, *, live: bool) -> tuple[Frame, ...]:
        """The frames that stay once all before `number` is there (Segments.commit): one at least,
        for the file that is being written is never removed. In a spool that was left, a record may
        go on in the next file (Segments.of_folder).
        """
        frames = spool.frames
        while len(frames) > 1 and frames[0].end + (not live) <= number:
            frames = frames[1:]
        return frames

    def has_all(self, outbox: Outbox, spool: Spool, said: Done) -> bool:
        """Whether what answers Last answers for every record (Outbox._settle_flushes)."""
        return said.committed >= self.place(outbox, spool, spool.end)

    def follows(self, outbox: Outbox, said: Resume) -> bool:
        """Whether the attempts that an heir follows are there still (Outbox._resume)."""
        return outbox.attempt in (None, said.attempt)

    def heir(self, spool: Spool, attempts: tuple[Attempt, ...]) -> Heir | None:
        """As whom a spool that was left goes on (past.heir_among)."""
        return heir_among(spool.secret, [PastAttempt(a.claim, len(a.rows), 0) for a in attempts])

    def delivery(self, state: State, number: int) -> Outbox | None:
        """How a left spool is pushed (SpoolContent.hello); None where it may not begin there."""
        spool = state.spool(number)
        heir = self.heir(spool, state.attempts)
        if heir is None:
            hello = Hello(spool.secret, spool.resume, 0)
            refused = bool(state.attempts) and not spool.resume
            return None if refused else Outbox(number, hello, live=False, ends=True)
        last = state.attempts[-1]
        known = len(last.rows) if last.claim == claim_of(heir.secret) else 0
        hello = Hello(heir.secret, resume=True, acknowledged=known)
        links = tuple(map(_plain, heir.links))
        return Outbox(number, hello, False, heir.base, links, heir.attempt, ends=True)

    # -- the recorder: anchorlib.recorder.recorder_plan

    def goes_on(self, state: State) -> int:
        """Where the next recorder goes on in the ring: behind what the one before had spooled."""
        return state.ring


def _plain(link: StoredRange) -> tuple[int, int, int]:
    return link.attempt, link.first, link.end
