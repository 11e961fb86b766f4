"""A spool: records on the trainer's disk until the collector has them.

    make_spool(…)          makes the spool of a session, which writes and delivers it
    OwnedSpool.take(…)     takes over the spool that a dead process left, to deliver it

A spool's directory holds everything that delivery needs, so that any process can deliver the rest.
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
from anchorlib.spool.holes import Holes
from anchorlib.spool.limit import limit_of
from anchorlib.spool.reader import SpoolNotes, read_notes
from anchorlib.spool.segments import Segments
from anchorlib.spool.spool_folder import LABEL, SpoolLabel, SpoolLock, spools_of
from anchorlib.spool.spooled_frames import SpoolFrames
from anchorlib.spool.writer import SEGMENT_SIZE, SegmentSize, SpoolWriter
from anchorlib.wire import Encoder, Hello, PushRequest, sealed

__all__ = ["OwnedSpool", "WrittenSpool", "make_spool", "spooled_by"]

_SEGMENTS_A_LIMIT = 8  # segments in a full spool, so that delivery frees its room bit by bit
_LEAST_SEGMENT = 1 << 16


class OwnedSpool:
    """A spool that this process owns.

    folder: its directory.
    label: its run, rank and destination; None where the label's file was lost.
    """

    def __init__(self, folder: Path, lock: SpoolLock, label: SpoolLabel | None) -> None:
        self.folder = folder
        self.label = label
        self._lock = lock

    @classmethod
    def take(cls, folder: Path) -> Self:
        """The spool in `folder`, now owned by this process.

        Raises RunBusyError where another live process owns it, StoreError where it cannot be read.
        """
        try:
            return cls(folder, SpoolLock(folder), SpoolLabel.read(folder))
        except OSError as error:
            if isinstance(error, RunBusyError):
                raise
            raise StoreError(f"cannot open the spool {escape(str(folder))}: {error}") from error

    def segments(self) -> Segments:
        """The spool's segments, as they are on disk."""
        return Segments.of_folder(self.folder)

    def holes(self, to: str) -> Holes:
        """The records that are missing, as the store at `to` counts them."""
        return Holes(self.folder, to)

    def notes(self, segments: Segments) -> SpoolNotes:
        """What the spool's segments hold beside frames: who wrote it, gaps, lineage, its end."""
        return read_notes(segments)

    def finish(self, segments: Segments) -> bool:
        """Remove a spool that was delivered, and give up its lock; returns whether all is removed.

        Damaged segments stay, under their names with ".bad".
        """
        segments.clear()
        kept = any(self.folder.glob("*.bad"))
        if not kept:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)
        self.release()
        return not kept

    def release(self) -> None:
        """Give up the spool's lock, and leave its files as they are."""
        self._lock.release()


class WrittenSpool:
    """A session's spool, which the session writes and delivers.

    limit: the most bytes that it may take on disk.
    writer, frames: its writing hand and the frames for an outbox; both are set by `connect`.
    """

    def __init__(  # noqa: PLR0913  # independent options, given by keyword
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
        self._logged_at = 0.0
        self._logged_every = 1.0

    def connect(
        self, encoder: Encoder, lineage: list[bytes], changed: threading.Condition
    ) -> SpoolFrames:
        """The spool's frames, for an outbox; to be called once, before anything is written.

        encoder: makes the frames; the spool stores its definitions too.
        lineage: the outbox's list of lineage messages, which the spool stores too.
        changed: guards the frames.
        """
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
        """Bytes of the spool on disk."""
        return self._segments.nbytes

    def redirect(self, to: str) -> None:
        """Note in the label that the spool goes to the collector at `to` from now on.

        Raises OSError.
        """
        label = self._work.label
        if label is not None:
            self._work.label = label = replace(label, to=to)
            label.write(self.folder)

    def settle(self) -> None:
        """Bring all stored frames to the disk, where the session promised to survive power loss."""
        if self._power and not self.frames.spilling:
            self.writer.sync_or_warn()

    def tell(self) -> None:
        """Write gap statements and lineage to the disk, every so often.

        They are written with the next frame otherwise, and a full spool takes no frame for long.
        """
        now = time.monotonic()
        if now < self._logged_at + self._logged_every:
            return
        self._logged_at, self._logged_every = now, min(60.0, 2 * self._logged_every)
        with contextlib.suppress(OSError):
            self.writer.notes()

    def leave(self) -> int:
        """Leave the spool for another process to deliver; returns how many records are lost.

        Records are lost that the disk did not take, and that were in memory until now.
        """
        self.frames.save()
        with contextlib.suppress(OSError):
            self.writer.notes(closed=True)
        self._close()
        self._work.release()
        return self.frames.kept_records

    def remove(self) -> None:
        """Remove the spool: everything in it is delivered."""
        self._close()
        self._work.finish(self._segments)

    def _close(self) -> None:
        self.writer.close()
        self.frames.close()


def make_spool(  # noqa: PLR0913  # independent options, given by keyword
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

    to, among, power: as in `SpoolLabel`.
    limit: the most bytes on disk; None takes what `limit_of` says.

    Raises OptionError, OSError.
    """
    disk = disk or Disk()
    who = hello.writer_id.hex()
    label = SpoolLabel(hello.run, hello.rank, who, to, time.time_ns(), power, among)
    above = [path for path in (place, *place.parents) if not path.exists()]
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(place)
    # The folder gets its name once it is locked, so that no process finds it without an owner.
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
    """Bring the spool's folder, its label and the folders made for it to the disk.

    A disk that fails is not reported here: the first record that cannot be synced reports it.
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
    """How many records a dead writer has put into its spool; None where it has no spool here.

    writer: the writer's secret, in hex. A spool without segments, as one whose records were all
        delivered, counts 0.
    """
    for folder in spools_of(place, run, rank):
        label = SpoolLabel.read(folder)
        if label is not None and label.writer_id == writer:
            return read_notes(Segments.of_folder(folder)).end
    return None
