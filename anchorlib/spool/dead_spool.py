"""The content of a dead process's spool, ready to be sent, and the outcome of its delivery."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from anchorlib.claims import claim_of
from anchorlib.errors import RunExistsError, StoreError, UnsupportedError
from anchorlib.names import escape
from anchorlib.record import Gap
from anchorlib.spool.destination import Target
from anchorlib.spool.spooled_frames import SpoolFrames
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.stored_attempts import PastAttempt, heir_among
from anchorlib.wire import (
    PROTOCOL,
    Hello,
    Link,
    by_hash,
    parse_addresses,
    why_not_delivered,
    writer_name,
)

__all__ = ["Delivered", "Load"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """The outcome of a delivery.

    records: good records of the spool, those that the store had `already` among them.
    lost: records that damage cost, as far as they can be counted.
    set_aside: damaged segments, which stay in the spool's directory.
    """

    run: str
    rank: int
    records: int
    already: int
    lost: int
    set_aside: int


class Load:
    """A spool's content, ready to be sent to `target`.

    links: attempts at the target that hold records of earlier deliveries; set by `hello`.
    attempt: the number of the attempt that the target has to resume; None allows any.
    """

    def __init__(self, work: OwnedSpool, target: Target, changed: threading.Condition) -> None:
        self._work = work
        self._target = target
        self._segments = work.segments()
        self._holes = work.holes(target.key)
        self.links: tuple[Link, ...] = ()
        self.attempt: int | None = None
        self.notes = work.notes(self._segments)
        self.frames = SpoolFrames(self._segments, self._holes, changed, end=self.notes.end)
        if self.notes.hello is None and (work.label is None or self.notes.end):
            raise StoreError(
                f"nothing in the spool {escape(str(work.folder))} says which run it is of"
            )
        if self.notes.hello is not None and (why := why_not_delivered(self.notes.hello.protocol)):
            raise UnsupportedError(f"cannot deliver the spool {escape(str(work.folder))}: {why}")

    @property
    def run(self) -> str:
        """The run's name at the target."""
        return self._target.run or self._hello.run

    @property
    def rank(self) -> int:
        """The rank that the spool is of."""
        return self._hello.rank

    @property
    def part(self) -> int:
        """The number of the part of its rank that the target holds; 0 where it holds the whole."""
        return self._part or 0

    @property
    def _part(self) -> int | None:
        """The number of the target's part; None where the rank is not spread over collectors."""
        label = self._work.label
        if label is None or not label.among or self._target.run is not None:
            return None
        order = by_hash(parse_addresses(label.among), label.run, label.rank)
        places = [str(one) for one in order]
        return places.index(self._target.to) if self._target.to in places else None

    @property
    def _hello(self) -> Hello:
        label = self._work.label
        if self.notes.hello is not None or label is None:
            return self.notes.hello or Hello()
        return Hello(run=label.run, rank=label.rank, writer_id=bytes.fromhex(label.writer_id))

    def hello(self, attempts: Sequence[PastAttempt]) -> Hello:
        """The Hello of this delivery, to a target that has these attempts at the rank already.

        Raises RunExistsError where the attempts are another recording.
        """
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.run = self.run
        # The recording process spoke its own protocol version, and has ended: this one writes now.
        hello.protocol, hello.writer = PROTOCOL, writer_name()
        if self._target.run is not None:
            hello.resume, hello.overwrite = self._target.follows, False
        if self._part is not None:
            return self._as_part(hello, attempts, self._part)
        hello.ClearField("part")
        heir = heir_among(hello.writer_id, attempts)
        if heir is None:
            self._check_free(hello, attempts)
            return hello
        hello.writer_id, self._holes.base, self.links, self.attempt = heir
        hello.resume, hello.overwrite = True, False
        if attempts[-1].claim == claim_of(heir.secret):
            hello.acknowledged = attempts[-1].records
        return hello

    def _as_part(self, hello: Hello, attempts: Sequence[PastAttempt], number: int) -> Hello:
        """Complete `hello` for a part: its records keep the spool's numbers.

        Earlier records of the rank may be at other collectors, and stay there.
        """
        claim = claim_of(hello.writer_id)
        oldest = self._segments.oldest
        first = self.notes.end if oldest is None else oldest.first
        if claim not in {one.claim for one in attempts}:
            self._check_free(hello, attempts)
        elif attempts[-1].claim == claim:
            first = max(first, attempts[-1].first)
        hello.part.number, hello.part.first = number, first
        return hello

    def _check_free(self, hello: Hello, attempts: Sequence[PastAttempt]) -> None:
        """Raises RunExistsError where the target has a recording that this spool must not touch."""
        label = self._work.label
        where = f"rank {hello.rank} of run {hello.run!r} in {escape(self._target.to)}"
        if attempts and not (hello.resume or hello.overwrite):
            raise RunExistsError(f"{where} is another recording; {self._elsewhere}")
        since = 0 if label is None else label.created_ns
        newest = max((one.started_ns for one in attempts), default=0)
        if hello.overwrite and newest > since:
            raise RunExistsError(
                f"{where} was recorded anew since this spool was left, and would be overwritten; "
                f"{self._elsewhere}"
            )

    @property
    def _elsewhere(self) -> str:
        line = f"anchor push {shlex.quote(str(self._work.folder))} --to {self._target.to} --as NAME"
        return f"deliver the spool under another name: `{escape(line)}`"

    def damage(self) -> list[Gap]:
        """The gap statement of the records lost by damage, to be called once all frames were read.

        Records missing at the end of a closed session are counted too.
        """
        reached = self.frames.reached
        if self.notes.closed and reached < self.notes.end:
            self._holes.add(reached, self.notes.end)
        return self.frames.damage

    def finish(self) -> Delivered:
        """Remove the spool, all of which is delivered; returns the outcome."""
        records = self.frames.end + self._holes.base
        # A collector may have more records: this machine lost the last ones of its disk with power.
        already = min((self.frames.already or 0) + self._holes.base, records)
        run, rank, lost = self.run, self.rank, self._holes.damage
        damaged = sum(segment.damaged for segment in self._segments.listed)
        damaged += self._segments.set_aside
        self.frames.close()
        self._work.finish(self._segments)
        return Delivered(run, rank, records, already, lost, damaged)
