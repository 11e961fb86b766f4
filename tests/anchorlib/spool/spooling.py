"""Spools written by hand, disks that fail, and a collector made of a list."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from anchorlib.block import block_of
from anchorlib.record import Record
from anchorlib.spool.dead_spool import SpoolContent
from anchorlib.spool.destination import Destination
from anchorlib.spool.disk import Disk
from anchorlib.spool.format import CorruptBytes, entry_at, next_good
from anchorlib.spool.spools import OwnedSpool, make_spool
from anchorlib.wire import (
    PROTOCOL,
    Ack,
    Decoder,
    Encoder,
    Hello,
    Outbox,
    ParsedFrame,
    PushReply,
    Resume,
    parse_request,
)
from tests.delivery.lines import (
    numbered,
)
from tests.server.pushing import answer
from tests.writing import records_of


def entries(data, at=0):
    """All good entries from `at` on, and the stretches of damage between them."""
    while at < len(data):
        found = entry_at(data, at)
        if isinstance(found, CorruptBytes):
            end = next_good(data, at + 1)
            found = CorruptBytes(at, end, torn=found.torn and end == len(data))
        yield found
        at = found.end


class FailingDisk(Disk):
    """Takes `room` bytes, then fails with `code`; `short` writes a part before it fails."""

    def __init__(self, room: int, code: int = errno.ENOSPC, *, short: bool = True) -> None:
        self.room = room
        self.code = code
        self.short = short
        self.cannot_truncate = False
        self.synced: list[int] = []
        self.sync_fails = False

    def create(self, path: Path) -> int:
        if self.room <= 0:
            raise OSError(self.code, os.strerror(self.code))
        return super().create(path)

    def write(self, file: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        if len(data) > self.room:
            part = data[: max(0, self.room)] if self.short else b""
            self.room = 0
            if part:
                return super().write(file, [part])
            raise OSError(self.code, os.strerror(self.code))
        self.room -= len(data)
        return super().write(file, [data])

    def truncate(self, file: int, size: int) -> None:
        if self.cannot_truncate:
            raise OSError(errno.EIO, "no truncate")
        super().truncate(file, size)

    def sync(self, file: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "no sync")
        super().sync(file)
        self.synced.append(os.fstat(file).st_size)


class LazyDisk(Disk):
    """Brings nothing to the disk: for files that no test will miss."""

    def sync(self, file: int) -> None:
        pass


class Written:
    """A spool written by hand, without a sender."""

    def __init__(
        self,
        place: Path,
        disk: Disk | None = None,
        *,
        frame_bytes: int = 2000,
        header: str = "{}",
        **options,
    ) -> None:
        hello = Hello(
            protocol=PROTOCOL, run="run1", rank=0, writer_id=os.urandom(16), header=header
        )
        self.spool = make_spool(place, hello, "grpc://127.0.0.1:1", disk=disk, **options)
        self.encoder = Encoder(frame_bytes=frame_bytes)
        self.lineage: list[bytes] = []
        self.frames = self.spool.connect(self.encoder, self.lineage, threading.Condition())
        self.outbox = Outbox(self.encoder, frames=self.frames, lineage=self.lineage)

    @property
    def folder(self) -> Path:
        return self.spool.folder

    def put(self, numbers: Sequence[int]) -> None:
        made = [*self.encoder.encode(block_of([numbered(n) for n in numbers])), None]
        for frame, after in pairwise(made):
            assert frame is not None
            self.frames.store(frame, more=after is not None and after.end == frame.end)
            self.outbox.append(frame)
        self.spool.settle()

    def die(self) -> None:
        """As kill -9 does: nothing more is written."""
        self.spool._close()
        self.spool._work.release()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def warnings_in(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


class Taker:
    """A collector that keeps steps, forgets what it did not acknowledge, and checks numbers."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.records: list[Record] = []
        self.acked = 0
        self.begin()

    @property
    def steps(self) -> list[int]:
        return [one.step for one in self.records]

    def begin(self) -> None:
        """A new stream."""
        self.decoder = Decoder()
        self.frames = 0
        del self.records[self.acked :]
        self.outbox.restart()
        self.outbox.take(PushReply(resume=Resume(committed=self.acked)))

    def take(self) -> bool:
        message = self.outbox.next()
        if message is None:
            return False
        request = parse_request(message)
        if isinstance(request, ParsedFrame):
            assert request.head.first <= len(self.records)
            self.frames += 1
            records = records_of(self.decoder.block(request))
            self.records += records[len(self.records) - request.head.first :]
        elif request.WhichOneof("message") == "define":
            self.decoder.define(request.define)
        elif request.WhichOneof("message") == "confirm":
            self.outbox.take(answer(request.confirm, self.records))
        return True

    def answer(self, committed: int) -> None:
        self.acked = max(self.acked, committed)
        self.outbox.take(PushReply(ack=Ack(committed=self.acked, frames=self.frames)))


def good_records(folder: Path) -> tuple[list[int], int]:
    """The records that a damaged spool still gives, and how many are known to be lost."""
    work = OwnedSpool.take(folder)
    changed = threading.Condition()
    content = SpoolContent(work, Destination("somewhere"), changed)
    frames, decoder, defined, found = content.frames, Decoder(), 0, []
    frames.rewind()
    frames.commit(0)
    while (frame := frames.first()) is not None:
        for message in frames.definitions[defined : frame.definitions]:
            decoder.define(parse_request(message).define)
        defined = frame.definitions
        framed = parse_request(frame.message)
        assert isinstance(framed, ParsedFrame)
        assert framed.head.first == len(found)  # no hole is left in the numbers
        found += [record.step for record in records_of(decoder.block(framed))]
        frames.advance()
    content.damage()
    frames.close()
    work.release()
    return found, frames.lost
