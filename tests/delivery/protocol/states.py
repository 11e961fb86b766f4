"""The state of a push at one moment: trainer, spools, line, collector, store.

    ring ─put─▶ Spool ─Outbox─▶ Line ─▶ Serving ─▶ attempts in the store
                  ▲                │
                  └── removed ◀────┘ answers

All are values, so that a state can be remembered, and gone on from in every way there is. Records
are numbers; a row of somebody else's is `OTHER`. Numbers that a writer counts from 0, of its own
records, are `number` in a spool and `place` on the wire, as in `anchorlib.spool.holes`.
"""

from __future__ import annotations

from typing import NamedTuple

OTHER = -1
WINDOW = 2  # frames, and questions, that are sent ahead of their answers


class Frame(NamedTuple):
    """Records that are sent together; first: the number of the first of them."""

    first: int
    rows: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class Spool(NamedTuple):
    """What one writer left, or still writes; each frame is a file of its own.

    near: on the machine of every later writer that is near too, who delivers it first.
    end: the number after its last record. closed: its session said that it was over.
    hole: of its first numbers, how many are in no file, and were brought elsewhere.
    """

    secret: bytes
    resume: bool
    near: bool
    frames: tuple[Frame, ...] = ()
    end: int = 0
    closed: bool = False
    hole: int = 0


class Attempt(NamedTuple):
    """One attempt in the store."""

    claim: bytes
    rows: tuple[int, ...] = ()


class Hello(NamedTuple):
    """How a stream begins."""

    secret: bytes
    resume: bool
    acknowledged: int


class Confirm(NamedTuple):
    """Asks for the records of an attempt; `rows`, which they must equal, stay with the writer."""

    attempt: int
    first: int
    end: int
    rows: tuple[int, ...]


class Last(NamedTuple):
    """The last thing that a stream says: close, or flush where a dead session's spool is pushed."""

    closes: bool


class Resume(NamedTuple):
    """How a collector answers Hello."""

    committed: int
    attempt: int


class Confirmed(NamedTuple):
    """How a collector answers Confirm."""

    rows: tuple[int, ...]


class Ack(NamedTuple):
    """How a collector answers a frame; frames: how many were dealt with on this stream."""

    committed: int
    frames: int


class Done(NamedTuple):
    """How a collector answers Last."""

    committed: int


Request = Hello | Confirm | Frame | Last
Reply = Resume | Confirmed | Ack | Done


class Outbox(NamedTuple):
    """One spool on its way, as `anchorlib.wire.Outbox` has it.

    links: (attempt, first, end) of attempts that brought what came before, in places.
    attempt: which one it has to be behind those, None for whichever.
    base: places that the store counts for an earlier secret of this writer.
    resume_at: what the collector said it has, until that is confirmed.
    at: the place that is sent next. sent, told: frames of this stream, and those answered.
    ends: nothing more will come, so that Last may be said. refused: for good.
    """

    spool: int
    hello: Hello
    live: bool
    base: int = 0
    links: tuple[tuple[int, int, int], ...] = ()
    attempt: int | None = None
    committed: int = 0
    resumed: bool = False
    resume_at: int | None = None
    doubts: tuple[Confirm, ...] = ()
    asked: tuple[Confirm, ...] = ()
    at: int = 0
    sent: int = 0
    told: int = 0
    ends: bool = False
    said_last: bool = False
    refused: bool = False

    def restarted(self) -> Outbox:
        """The outbox as a new stream finds it."""
        return self._replace(
            resumed=False,
            resume_at=None,
            doubts=(),
            asked=(),
            at=0,
            sent=0,
            told=0,
            said_last=False,
        )


class Serving(NamedTuple):
    """A stream at the collector, once it has said hello.

    due: the place that has to come next. frames: dealt with.
    unwritten: acknowledged and not in the store, which never is where the rules hold.
    """

    claim: bytes
    due: int
    frames: int = 0
    unwritten: tuple[int, ...] = ()


class Line(NamedTuple):
    """One stream: what travels, and how far the collector is with it."""

    requests: tuple[Request, ...] = ()
    replies: tuple[Reply, ...] = ()
    serving: Serving | None = None


class State(NamedTuple):
    """The state of all parties.

    ring: records that are in spools; those behind it wait in the trainer's memory. marked: as many
        as the ring's mark knows of.
    spools: of each writer so far, None once nothing is left of it. live: the writer that lives.
    asleep: a process that nobody has heard of for long, with what it was about to say.
    skipped: spools that this writer was refused, and leaves to `anchor push`.
    old: a stream whose client is gone, which the collector has not noticed.
    attempts: in the store. erased: records that somebody with the right to do so took away.
    replaced: whether somebody has.
    """

    ring: int = 0
    marked: int = 0
    spools: tuple[Spool | None, ...] = ()
    live: int | None = None
    asleep: Outbox | None = None
    skipped: frozenset[int] = frozenset()
    outbox: Outbox | None = None
    line: Line | None = None
    old: Line | None = None
    attempts: tuple[Attempt, ...] = ()
    erased: frozenset[int] = frozenset()
    replaced: bool = False

    @property
    def stored(self) -> list[int]:
        """The rows of the store, in order."""
        return [row for attempt in self.attempts for row in attempt.rows]

    def spool(self, number: int) -> Spool:
        found = self.spools[number]
        assert found is not None
        return found

    def with_spool(self, number: int, spool: Spool | None) -> State:
        spools = self.spools
        return self._replace(spools=(*spools[:number], spool, *spools[number + 1 :]))
