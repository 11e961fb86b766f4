"""The content of a spool that a dead process left, ready to be sent, and its delivery's outcome.

A spool is a folder with records for a collector. Its files, the segments, hold messages; a message
with records is a frame. An attempt is one recording of a rank.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from anchorlib.claims import claim_of
from anchorlib.errors import RunExistsError, StoreError, UnsupportedError
from anchorlib.names import escape
from anchorlib.record import Gap
from anchorlib.spool.destination import Destination
from anchorlib.spool.spooled_frames import SpoolFrames
from anchorlib.spool.spools import OwnedSpool
from anchorlib.spool.stored_attempts import PastAttempt, heir_among
from anchorlib.wire import (
    PROTOCOL,
    Hello,
    StoredRange,
    by_hash,
    parse_addresses,
    why_not_delivered,
    writer_name,
)

__all__ = ["DeliveryResult", "SpoolContent"]


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The outcome of delivering a spool.

    run, rank: the run (by its name in the store) and the rank that the records belong to.
    records: how many intact records the spool had. already: how many of these the store had before.
    lost: how many records were lost to damage on the disk, as far as they can be counted.
    set_aside: how many damaged segments stay in the spool's folder, and are not removed with it.
    """

    run: str
    rank: int
    records: int
    already: int
    lost: int
    set_aside: int


class SpoolContent:
    """The content of the spool `work`, which a dead process left, ready to be sent to `target`.

    changed: guards the frames.

    notes: what the spool holds beside records: its writer, gaps, lineage. frames: the messages with
        the records.

    links: the ranges of records that attempts of the target hold from earlier deliveries of this
        spool; () until `hello` sets them.

    attempt: the number that the target has to give to the attempt of this delivery, which `hello`
        sets if earlier deliveries have begun; None allows any number.

    Construction raises StoreError if nothing in the spool names its run, UnsupportedError if the
    spool is of a protocol version that cannot be delivered.
    """

    def __init__(self, work: OwnedSpool, target: Destination, changed: threading.Condition) -> None:
        self._work = work
        self._target = target
        self._segments = work.segments()
        self._holes = work.holes(target.key)
        self.links: tuple[StoredRange, ...] = ()
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
        """The rank whose records the spool holds."""
        return self._hello.rank

    @property
    def part(self) -> int:
        """The number of the part of the rank that the target holds; 0 if it holds the whole rank.

        A rank has parts, counted from 0, where several collectors record it, one after the other.
        """
        return self._part or 0

    @property
    def _part(self) -> int | None:
        """The number of the target's part of the rank; None if the target holds the whole rank.

        A rank has parts if several collectors record it, one after the other. None also if the
        target is none of the collectors that the spool's file spool.json names, or if the run gets
        another name there.
        """
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
        """Return the Hello message, which opens the delivery: it says who writes which run.

        If earlier deliveries have begun to bring records of this spool to the target, this also
        sets `links` and `attempt`, and record number 0 of this delivery is the spool's first record
        that is not in `links`.

        attempts: the recordings of this rank that the target has already, oldest first.

        Raises RunExistsError if the target has a recording of this rank that this spool must
        neither continue nor replace.
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
        """Set the part in the message `hello`, for a target with part `number`; return `hello`.

        The records of a part keep the numbers that they have in the spool; earlier records of the
        rank may be at other collectors, and stay there. Raises RunExistsError as `hello` does.
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
        """Raise RunExistsError if the target has a recording that this spool must not touch.

        attempts: the target's attempts at the rank. They must not be touched if the session that
        wrote the spool neither resumed nor overwrote a run, or if it overwrote a run and an attempt
        is newer than the spool.
        """
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
        """Return a list with the gap that counts the records lost by damage; [] if none was lost.

        The caller has to read all messages with records before. Records missing at the end of a
        closed session are counted too, and noted in the spool's file `lost`.
        """
        reached = self.frames.reached
        if self.notes.closed and reached < self.notes.end:
            self._holes.add(reached, self.notes.end)
        return self.frames.damage

    def finish(self) -> DeliveryResult:
        """Remove the spool, and return the counts of the delivery.

        The caller has delivered all of the spool. Damaged segments stay on the disk, renamed, and
        are counted; the lock is released.
        """
        records = self.frames.end + self._holes.base
        # A collector may have more records: this machine lost the last ones of its disk with power.
        already = min((self.frames.already or 0) + self._holes.base, records)
        run, rank, lost = self.run, self.rank, self._holes.damage
        damaged = sum(segment.damaged for segment in self._segments.listed)
        damaged += self._segments.set_aside
        self.frames.close()
        self._work.finish(self._segments)
        return DeliveryResult(run, rank, records, already, lost, damaged)
