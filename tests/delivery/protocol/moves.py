"""The moves of the model: each party's own steps, and the faults that befall them.

Faults come as often as they like, at any moment; of new writers, and of those who take the run away
by right, there are as many as `Bounds` says, for else there would be no last state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from anchorlib.claims import claim_of
from anchorlib.wire import FailureKind
from tests.delivery.protocol.rules import Rules
from tests.delivery.protocol.states import (
    OTHER,
    Ack,
    Attempt,
    Confirm,
    Confirmed,
    Done,
    Frame,
    Hello,
    Last,
    Line,
    Outbox,
    Reply,
    Resume,
    Serving,
    Spool,
    State,
)


class Move(NamedTuple):
    """What happened; `fair`: a step that nothing but faults keeps from happening."""

    name: str
    state: State
    about: int = 0
    fair: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an exploration, which keep the number of states finite.

    frames: that the trainer makes, as rows. writers: trainers, or recorders, one after the other.
    resumes: whether the first writer too was told to resume.
    taken: one with the right to it may remove the run, once, and record so many rows of his own.
    forged: one who writes into the files may leave the last writer so many rows, all but the first
        of which are his own.
    harsh: frames are dropped and doubled on the way, which a flipped bit of a stream's number does.
    sleeps: a process may not be heard of while another writer comes and goes, and then go on.
    """

    frames: tuple[tuple[int, ...], ...] = ((0,), (1, 2), (3,))
    writers: int = 2
    resumes: bool = False
    taken: tuple[int, ...] = ()
    forged: tuple[int, ...] = ()
    harsh: bool = False
    sleeps: bool = False

    @property
    def records(self) -> int:
        return sum(map(len, self.frames))


class Moves:
    """The steps from a state, by the rules."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self._rules = rules
        self._bounds = bounds

    def first(self) -> State:
        """A first writer lives, with an empty spool."""
        return self._with_writer(State(), near=True)

    def all(self, state: State) -> Iterator[Move]:
        """Every step that may come next."""
        yield from self._recorder(state)
        yield from self._sender(state)
        yield from self._collector(state)
        yield from self._ends(state)
        yield from self._begins(state)
        yield from self._faults(state)

    # -- the recorder: what it takes out of the ring

    def _recorder(self, state: State) -> Iterator[Move]:
        number = len(state.spools) - 1
        if state.live != number:
            return
        spool = state.spools[number]
        if state.marked < state.ring:
            yield Move("mark", state._replace(marked=state.ring))
        elif spool is not None and state.ring < self._bounds.records and not spool.closed:
            rows = next(one for one in self._bounds.frames if one[0] == state.ring)
            frames = (*spool.frames, Frame(spool.end, rows))
            grown = spool._replace(frames=frames, end=spool.end + len(rows))
            yield Move("put", state.with_spool(number, grown)._replace(ring=state.ring + len(rows)))

    # -- the sender

    def _sender(self, state: State) -> Iterator[Move]:
        outbox = state.outbox
        if outbox is None:
            yield from self._turns(state)
            return
        if outbox.refused:
            return
        if state.line is None:
            hello = outbox.hello
            said = hello._replace(acknowledged=max(hello.acknowledged, outbox.committed))
            begun = state._replace(outbox=outbox.restarted(), line=Line((said,)))
            yield Move("connect", begun)
            return
        if outbox.live and not outbox.ends and self._has_all(state):
            yield Move("close", state._replace(outbox=outbox._replace(ends=True)))
        request = self._rules.next_request(outbox, state.spool(outbox.spool))
        if request is not None:
            line = state.line._replace(requests=(*state.line.requests, request))
            yield Move("send", state._replace(outbox=_sent(outbox, request), line=line))
        if not (state.line.requests or state.line.replies) and outbox.sent > outbox.told:
            yield Move("silence", _hung_up(state))  # PushStream._watch
        if state.line.replies:
            line = state.line._replace(replies=state.line.replies[1:])
            yield Move(
                "hear", self._heard(state._replace(line=line), outbox, state.line.replies[0])
            )

    def _turns(self, state: State) -> Iterator[Move]:
        """A writer delivers what was left near it, oldest first, and then its own."""
        if state.live is None:
            return
        number = state.live
        mine = state.spool(number)
        left = self._left(state, near=True)
        if mine.near and mine.resume and left and number == len(state.spools) - 1:
            delivery = self._rules.delivery(state, left[0])
            if delivery is None:
                skipped = state.skipped | {left[0]}
                yield Move("skip", state._replace(skipped=skipped), left[0])
            else:
                yield Move("deliver", state._replace(outbox=delivery), left[0])
            return
        hello = Hello(mine.secret, mine.resume, 0)
        yield Move("speak", state._replace(outbox=Outbox(number, hello, live=True)), number)

    def _left(self, state: State, *, near: bool) -> list[int]:
        held = {state.live, None if state.asleep is None else state.asleep.spool}
        return [
            number
            for number, spool in enumerate(state.spools)
            if spool is not None and spool.near is near and number not in state.skipped | held
        ]

    def _has_all(self, state: State) -> bool:
        """Whether the writer that lives has put all that it will."""
        return state.ring == self._bounds.records or state.live != len(state.spools) - 1

    def _heard(self, state: State, outbox: Outbox, reply: Reply) -> State:
        """What an outbox takes (Outbox.take)."""
        spool = state.spool(outbox.spool)
        if isinstance(reply, Resume):
            known = self._rules.believes(outbox, spool, reply)
            if not (known and self._rules.follows(outbox, reply)):
                return self._refused(state, FailureKind.HERE)
            doubts = self._rules.questions(outbox, spool, reply)
            return self._go_on(state, outbox._replace(resume_at=reply.committed, doubts=doubts))
        if isinstance(reply, Confirmed):
            if not self._rules.is_confirmed(outbox.asked[0], reply):
                return self._refused(state, FailureKind.HERE)
            return self._go_on(state, outbox._replace(asked=outbox.asked[1:]))
        if isinstance(reply, Ack):
            told = outbox._replace(told=reply.frames)
            if not (outbox.resumed or self._rules.counts_early()):
                return state._replace(outbox=told)
            return self._commit(state, told, reply.committed)
        if not self._rules.has_all(outbox, spool, reply):
            return _hung_up(state)
        return self._delivered(state, outbox)

    def _go_on(self, state: State, outbox: Outbox) -> State:
        if outbox.doubts or outbox.asked or outbox.resume_at is None:
            return state._replace(outbox=outbox)
        spool = state.spool(outbox.spool)
        committed = outbox.resume_at
        held = spool.frames[0].first if spool.frames else spool.end
        number = committed + outbox.base + spool.hole
        if number < held:
            if committed or outbox.live:
                return self._refused(state, FailureKind.HERE)
            state = state.with_spool(outbox.spool, spool._replace(hole=spool.hole + held - number))
        resumed = outbox._replace(resumed=True, links=(), at=committed, resume_at=None)
        return self._commit(state, resumed, committed)

    def _commit(self, state: State, outbox: Outbox, committed: int) -> State:
        outbox = outbox._replace(committed=max(outbox.committed, committed))
        spool = state.spool(outbox.spool)
        number = outbox.committed + outbox.base + spool.hole
        kept = spool._replace(frames=self._rules.kept(spool, number, live=outbox.live))
        return state.with_spool(outbox.spool, kept)._replace(outbox=outbox)

    def _delivered(self, state: State, outbox: Outbox) -> State:
        """All of it is there: the spool goes, and a session's own ends the session."""
        gone = state.with_spool(outbox.spool, None)._replace(outbox=None)
        gone = _hung_up(gone)
        return gone._replace(live=None, skipped=frozenset()) if outbox.live else gone

    def _refused(self, state: State, kind: FailureKind) -> State:
        """The stream ends with this; what passes is tried again (Sender._send)."""
        outbox = state.outbox
        assert outbox is not None
        state = _hung_up(state)
        waits = kind is FailureKind.BUSY and outbox.hello.resume  # Sender._may_pass
        if not kind.permanent or waits:
            return state
        if outbox.live:
            return state._replace(outbox=outbox._replace(refused=True))
        if state.live is not None:
            return state._replace(outbox=None, skipped=state.skipped | {outbox.spool})
        return state._replace(outbox=None)

    # -- the collector

    def _collector(self, state: State) -> Iterator[Move]:
        line, old = state.line, state.old
        if old is not None:
            if old.requests and old.serving is not None:
                _, served = self._served(state, old)
                yield Move("serve old", served._replace(old=_quiet(served.old)))
            yield Move("miss", state._replace(old=None))
        if line is None:
            return
        if line.serving is not None and line.serving.unwritten:
            yield Move("write", self._written(state, line))
        if not line.requests:
            return
        if isinstance(line.requests[0], Hello) and self._rules.waits_for(old):
            if old is not None and old.serving is not None and not _is_same(line.requests[0], old):
                yield Move("busy", self._refused(state, FailureKind.BUSY))
            return
        kind, served = self._served(state, line)
        yield Move("serve", served if kind is None else self._refused(served, kind))

    def _served(self, state: State, line: Line) -> tuple[FailureKind | None, State]:
        """The first request dealt with, on the present stream or on the old one."""
        where = "old" if line is state.old else "line"
        request, rest = line.requests[0], line._replace(requests=line.requests[1:])
        if isinstance(request, Hello):
            found = self._rules.admit(state.attempts, request)
            if isinstance(found, FailureKind):
                return found, state
            have = len(found[-1].rows)
            serving = Serving(claim_of(request.secret), have)
            answered = _answered(rest, Resume(have, len(found) - 1))._replace(serving=serving)
            return None, state._replace(attempts=found, **{where: answered})
        serving = line.serving
        assert serving is not None
        if isinstance(request, Confirm):
            rows = self._asked(state, request)
            if rows is None:
                return FailureKind.INVALID, state._replace(**{where: None})
            told = _answered(rest, Confirmed(rows))
            told = _answered(told, Ack(serving.due, serving.frames))
            return None, state._replace(**{where: told})
        if isinstance(request, Last):
            done = _answered(rest, Done(serving.due))
            over = done._replace(serving=None) if request.closes else done
            return None, state._replace(**{where: over})
        new = self._rules.new_rows(serving.due, request)
        if isinstance(new, FailureKind):
            return new, state._replace(**{where: None})
        serving = serving._replace(due=serving.due + len(new), frames=serving.frames + 1)
        if self._rules.is_written_first():
            state = _with_rows(state, new)
        else:
            serving = serving._replace(unwritten=serving.unwritten + new)
        answered = _answered(rest, Ack(serving.due, serving.frames))._replace(serving=serving)
        return None, state._replace(**{where: answered})

    def _asked(self, state: State, asked: Confirm) -> tuple[int, ...] | None:
        if asked.attempt >= len(state.attempts):
            return None
        rows = state.attempts[asked.attempt].rows
        return rows[asked.first : asked.end] if asked.end <= len(rows) else None

    def _written(self, state: State, line: Line) -> State:
        assert line.serving is not None
        quiet = line._replace(serving=line.serving._replace(unwritten=()))
        return _with_rows(state, line.serving.unwritten)._replace(line=quiet)

    # -- how writers end, and others begin

    def _ends(self, state: State) -> Iterator[Move]:
        if state.live is None:
            if state.outbox is not None and len(state.attempts) <= self._bounds.writers:
                yield Move("push is killed", _hung_up(state)._replace(outbox=None), fair=False)
            return
        ended = _hung_up(state)._replace(outbox=None, live=None, skipped=frozenset())
        gives_up = state.outbox is not None and state.outbox.refused
        yield Move("writer is killed", ended, fair=gives_up)
        if self._has_all(state) and state.marked == state.ring:
            left = ended.with_spool(state.live, state.spool(state.live)._replace(closed=True))
            yield Move("leave", left, fair=gives_up)

    def _begins(self, state: State) -> Iterator[Move]:
        if state.live is not None or state.outbox is not None:
            return
        if state.asleep is not None:
            live = state.asleep.spool if state.asleep.live else None
            awake = state._replace(asleep=None, outbox=state.asleep, live=live)
            yield Move("wake", awake)
        wanted = self._bounds.sleeps or state.ring < self._bounds.records
        if len(state.spools) < self._bounds.writers and wanted:
            for near in (True, False):
                yield Move("begin", self._with_writer(state, near=near), int(near), fair=False)
        older = state.asleep is not None and state.spool(state.asleep.spool).near
        for near in (False,) if older else (True, False):  # delivery._earlier: it comes first
            for number in self._left(state, near=near)[:1]:
                yield from self._pushed(state, number)

    def _pushed(self, state: State, number: int) -> Iterator[Move]:
        """What somebody does who finds a spool: pushes it, under another name where he must."""
        spool = state.spool(number)
        if not (spool.frames or spool.closed):
            yield Move("nothing waits", state.with_spool(number, None), number)
            return
        delivery = self._rules.delivery(state, number)
        if delivery is not None:
            yield Move("push", state._replace(outbox=delivery), number)
        if delivery is None or state.replaced:
            rows = {row for frame in state.spool(number).frames for row in frame.rows}
            away = state.with_spool(number, None)._replace(erased=state.erased | rows)
            yield Move("push under another name", away, number)

    def _with_writer(self, state: State, *, near: bool) -> State:
        number = len(state.spools)
        secret = bytes([number + 1]) * 16
        spool = Spool(secret, resume=self._bounds.resumes or number > 0, near=near)
        ring = self._rules.goes_on(state) if number else 0
        for empty in self._left(state, near=True) if near else ():  # spools._sweep
            left = state.spool(empty)
            if not (left.frames or left.closed):
                state = state.with_spool(empty, None)
        return state._replace(
            spools=(*state.spools, spool), live=number, ring=ring, marked=ring, skipped=frozenset()
        )

    # -- what befalls them

    def _faults(self, state: State) -> Iterator[Move]:
        if state.line is not None:
            yield Move("cut", _hung_up(state), fair=False)
            awake = state.asleep is None and state.outbox is not None and not state.outbox.refused
            if self._bounds.sleeps and awake and len(state.spools) < self._bounds.writers:
                gone = _hung_up(state)
                slept = gone._replace(
                    asleep=gone.outbox, outbox=None, live=None, skipped=frozenset()
                )
                yield Move("sleep", slept, fair=False)
            if state.line.requests:
                # Disk, memory, rate, runs, streams: nothing of it is written.
                yield Move("come later", self._refused(state, FailureKind.DISK), fair=False)
            yield from self._kills(state, state.line)
        if self._bounds.harsh and state.line is not None:
            yield from _tampered(state, state.line)
        yield from self._thefts(state)

    def _thefts(self, state: State) -> Iterator[Move]:
        """Nobody may touch a run while a stream has its rank."""
        served = state.line is not None and state.line.serving is not None
        if state.replaced or served or state.old is not None or not state.attempts:
            return
        last = state.attempts[-1]
        for rows in self._bounds.taken:
            others = (Attempt(b"another", (OTHER,) * rows),) if rows else ()
            yield Move("taken away", _taken(state, others), rows, fair=False)
        for rows in self._bounds.forged if last.rows else ():
            forged = last._replace(rows=last.rows[:1] + (OTHER,) * (rows - 1))
            others = (*state.attempts[:-1], forged)
            yield Move("forged", _taken(state, others), rows, fair=False)

    def _kills(self, state: State, line: Line) -> Iterator[Move]:
        """The collector dies: between two steps, or with some rows of a frame in the store."""
        dead = state._replace(line=None, old=None)
        yield Move("collector is killed", dead, fair=False)
        if line.serving is None or not line.requests or not isinstance(line.requests[0], Frame):
            return
        new = self._rules.new_rows(line.serving.due, line.requests[0])
        if not isinstance(new, FailureKind):
            for count in range(1, len(new)):
                yield Move("killed amid rows", _with_rows(dead, new[:count]), count, fair=False)


def _tampered(state: State, line: Line) -> Iterator[Move]:
    for at, request in enumerate(line.requests):
        if isinstance(request, Frame):
            before, after = line.requests[:at], line.requests[at + 1 :]
            dropped = line._replace(requests=(*before, *after))
            yield Move("drop", state._replace(line=dropped), at, fair=False)
            told = 0 if line.serving is None else line.serving.frames
            if len(line.requests) + told < _MOST_DOUBLED:
                doubled = line._replace(requests=(*before, request, request, *after))
                yield Move("double", state._replace(line=doubled), at, fair=False)


_MOST_DOUBLED = 5


def _taken(state: State, attempts: tuple[Attempt, ...]) -> State:
    left = {row for one in attempts for row in one.rows}
    erased = state.erased | (set(state.stored) - left)
    return state._replace(attempts=attempts, erased=erased, replaced=True)


def _sent(outbox: Outbox, request: object) -> Outbox:
    if isinstance(request, Confirm):
        return outbox._replace(doubts=outbox.doubts[1:], asked=(*outbox.asked, request))
    if isinstance(request, Frame):
        return outbox._replace(at=request.end, sent=outbox.sent + 1)
    return outbox._replace(said_last=True)


def _hung_up(state: State) -> State:
    """The client's end of the stream is over; the collector may still deal with what arrived.

    A call whose client is gone opens nothing: a Hello that was not dealt with is without effect.
    """
    line = state.line
    open_ = line is not None and line.serving is not None
    old = line._replace(replies=()) if line is not None and open_ else state.old
    return state._replace(line=None, old=old)


def _quiet(line: Line | None) -> Line | None:
    return None if line is None else line._replace(replies=())


def _is_same(hello: Hello, old: Line) -> bool:
    return old.serving is not None and old.serving.claim == claim_of(hello.secret)


def _answered(line: Line, reply: Reply) -> Line:
    return line._replace(replies=(*line.replies, reply))


def _with_rows(state: State, rows: tuple[int, ...]) -> State:
    last = state.attempts[-1]
    return state._replace(attempts=(*state.attempts[:-1], last._replace(rows=last.rows + rows)))
