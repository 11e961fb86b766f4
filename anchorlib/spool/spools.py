"""A spool: records on the trainer's disk until the collector has them.

    make_spool(…)          a session's own, written and delivered at once
    OwnedSpool.take(…)     what a dead process left, to be delivered

Its directory holds everything that delivery needs, so that any process may go on with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Self

from anchorlib.errors import RunBusyError, StoreError
from anchorlib.names import escape
from anchorlib.spool.disk import Disk
from anchorlib.spool.frames import SpoolFrames
from anchorlib.spool.holes import Holes
from anchorlib.spool.limit import limit_of
from anchorlib.spool.place import LABEL, SpoolLabel, SpoolLock, spools_of
from anchorlib.spool.reader import SpoolNotes, read_notes
from anchorlib.spool.segments import Segments
from anchorlib.spool.writer import SEGMENT_SIZE, SegmentSize, SpoolWriter
from anchorlib.wire import Encoder, Hello, PushRequest, sealed

__all__ = ["OwnedSpool", "WrittenSpool", "make_spool", "spooled_by"]

_SEGMENTS_A_LIMIT = 8  # so that a full spool gives way in parts
_LEAST_SEGMENT = 1 << 16


class OwnedSpool:
    """A spool that this process owns.

    folder: its directory.
    label: what it is of; None where it was lost.
    """

    def __init__(self, folder: Path, lock: SpoolLock, label: SpoolLabel | None) -> None:
        self.folder = folder
        self.label = label
        self._lock = lock

    @classmethod
    def take(cls, folder: Path) -> Self:
        """A spool that no live process owns; RunBusyError where one does, StoreError."""
        try:
            return cls(folder, SpoolLock(folder), SpoolLabel.read(folder))
        except OSError as error:
            if isinstance(error, RunBusyError):
                raise
            raise StoreError(f"cannot open the spool {escape(str(folder))}: {error}") from error

    def segments(self) -> Segments:
        """Its files."""
        return Segments.found(self.folder)

    def holes(self, to: str) -> Holes:
        """What is missing, as the store at `to` counts."""
        return Holes(self.folder, to)

    def notes(self, segments: Segments) -> SpoolNotes:
        """What it says beside its records."""
        return read_notes(segments)

    def finish(self, segments: Segments) -> bool:
        """All is delivered: the files go, but for damaged ones; whether nothing was left."""
        segments.clear()
        kept = any(self.folder.glob("*.bad"))
        if not kept:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)
        self.release()
        return not kept

    def release(self) -> None:
        """Give it back as it is."""
        self._lock.release()


class WrittenSpool:
    """A session's spool: where its frames go, and how much room there is.

    limit: bytes that it may take on disk.
    frames: what an outbox sends from.
    """

    def __init__(  # noqa: PLR0913  # what a session has to say of it
        self,
        folder: Path,
        lock: SpoolLock,
        label: SpoolLabel,
        hello: Hello,
        *,
        limit: int,
        power: bool,
        disk: Disk,
        segment_bytes: int | None = None,
    ) -> None:
        self.folder = folder
        self.limit = limit
        self._work = OwnedSpool(folder, lock, label)
        self._power = power
        self._hello = sealed(PushRequest(hello=hello))
        share = max(_LEAST_SEGMENT, limit // _SEGMENTS_A_LIMIT)
        fit = (min(size, share) for size in SEGMENT_SIZE)
        self._size = SegmentSize(*((segment_bytes,) * 2 if segment_bytes else fit))
        self._segments = Segments(folder, disk)
        self._told_at = 0.0
        self._told_every = 1.0

    def connect(
        self, encoder: Encoder, lineage: list[bytes], changed: threading.Condition
    ) -> SpoolFrames:
        """The frames of `encoder`; lineage as it will be sent. Called once."""
        self.writer = SpoolWriter(
            self._segments,
            self._hello,
            definitions=encoder.definitions,
            lineage=lineage,
            size=self._size,
        )
        self.frames = SpoolFrames(
            self._segments, Holes(self.folder), changed, self.writer, encoder.definitions
        )
        return self.frames

    @property
    def nbytes(self) -> int:
        """On disk."""
        return self._segments.nbytes

    def redirect(self, to: str) -> None:
        """What is in it goes to another collector from now on. Raises OSError."""
        label = self._work.label
        if label is not None:
            self._work.label = label = replace(label, to=to)
            label.write(self.folder)

    def settle(self) -> None:
        """What was stored counts as handed over now: where it must, it survives power loss."""
        if self._power and not self.frames.spilling:
            self.writer.sync_or_warn()

    def tell(self) -> None:
        """Write down what was stated, now and then: the spool may be full for long."""
        now = time.monotonic()
        if now < self._told_at + self._told_every:
            return
        self._told_at, self._told_every = now, min(60.0, 2 * self._told_every)
        with contextlib.suppress(OSError):
            self.writer.notes()

    def leave(self) -> int:
        """Keep everything for another process; how many records could not be written down."""
        self.frames.save()
        with contextlib.suppress(OSError):
            self.writer.notes(closed=True)
        self._close()
        self._work.release()
        return self.frames.kept_records

    def remove(self) -> None:
        """Everything is delivered."""
        self._close()
        self._work.finish(self._segments)

    def _close(self) -> None:
        self.writer.close()
        self.frames.close()


def make_spool(  # noqa: PLR0913  # what there is to say of it
    place: Path,
    hello: Hello,
    to: str,
    *,
    among: str = "",
    power: bool = False,
    limit: int | None = None,
    segment_bytes: int | None = None,
    disk: Disk | None = None,
) -> WrittenSpool:
    """A new spool below `place` for the writer that `hello` names.

    among: see `SpoolLabel`. limit: None takes ANCHOR_SPOOL_LIMIT, or what is sensible.

    Raises OptionError, OSError.
    """
    disk = disk or Disk()
    who = hello.writer_id.hex()
    label = SpoolLabel(hello.run, hello.rank, who, to, time.time_ns(), power, among)
    above = [path for path in (place, *place.parents) if not path.exists()]
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(place)
    # It gets its name when it is locked, so that nobody finds it without an owner.
    unnamed = place / f".{label.folder}"
    unnamed.mkdir(mode=0o700)
    lock = SpoolLock(unnamed)
    try:
        label.write(unnamed)
        most = limit_of(disk.free(place)) if limit is None else limit
        folder = place / label.folder
        unnamed.rename(folder)
        if power:
            _survive(folder, above, disk)
    except BaseException:
        lock.release()
        shutil.rmtree(unnamed, ignore_errors=True)
        raise
    return WrittenSpool(
        folder, lock, label, hello, limit=most, power=power, disk=disk, segment_bytes=segment_bytes
    )


def _survive(folder: Path, above: list[Path], disk: Disk) -> None:
    """The spool's own name and label outlast a power loss, as do folders made for it.

    A disk that cannot is told of with the first record.
    """
    with contextlib.suppress(OSError):
        _sync(folder, above, disk)


def _sync(folder: Path, above: list[Path], disk: Disk) -> None:
    file = os.open(folder / LABEL, os.O_RDONLY)
    try:
        disk.sync(file)
    finally:
        os.close(file)
    for made in (folder / LABEL, folder, *above):
        disk.sync_folder(made.parent)


def _sweep(place: Path) -> None:
    """Remove spools that dead processes left empty."""
    for folder in list(place.iterdir()):
        if folder.name.startswith(".") or not (folder / LABEL).exists():
            continue
        with contextlib.suppress(OSError, StoreError):
            if not any(set(folder.iterdir()) - {folder / LABEL, folder / "lock"}):
                work = OwnedSpool.take(folder)
                shutil.rmtree(folder, ignore_errors=True)
                work.release()


def spooled_by(place: Path, run: str, rank: int, writer: str) -> int | None:
    """How many records a writer, which is dead, has put into its spool; None where it had none.

    writer: its secret, in hex. Of a spool from which all was delivered, 0.
    """
    for folder in spools_of(place, run, rank):
        label = SpoolLabel.read(folder)
        if label is not None and label.writer_id == writer:
            return read_notes(Segments.found(folder)).end
    return None
