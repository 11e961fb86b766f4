"""A spool: a folder that keeps records on the trainer's disk until the collector has them.

    make_spool(…)          makes the spool of a session, which writes and delivers it
    OwnedSpool.take(…)     takes over the spool that a dead process left, to deliver it

The folder holds everything that delivery needs, so that after the death of the process that wrote
the spool any other process can deliver the rest.
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
    """A spool that this process has locked, so that no other process delivers it.

    folder: the spool's directory.

    label: the spool's run, rank, writer and destination, from its file spool.json; None if the file
        is lost or unreadable.
    """

    def __init__(self, folder: Path, lock: SpoolLock, label: SpoolLabel | None) -> None:
        self.folder = folder
        self.label = label
        self._lock = lock

    @classmethod
    def take(cls, folder: Path) -> Self:
        """Lock the spool in `folder` for this process, and return it.

        Raises RunBusyError if another live process has locked the spool, StoreError if the spool
        cannot be locked for another reason, for instance because it is gone.
        """
        try:
            return cls(folder, SpoolLock(folder), SpoolLabel.read(folder))
        except OSError as error:
            if isinstance(error, RunBusyError):
                raise
            raise StoreError(f"cannot open the spool {escape(str(folder))}: {error}") from error

    def segments(self) -> Segments:
        """Return the spool's segment files (which hold its records), as they are on disk now."""
        return Segments.of_folder(self.folder)

    def holes(self, to: str) -> Holes:
        """Return the ranges of records that the spool lacks, for a delivery to `to`.

        Records that damage has cost are missing for every destination. Records that an earlier
        delivery brought to another store, and that are gone from the spool, are noted for each
        destination that lacks them. to: a `Destination.key`.
        """
        return Holes(self.folder, to)

    def notes(self, segments: Segments) -> SpoolNotes:
        """Read what the segments hold beside records: who wrote them, gaps, lineage, the end.

        Gaps say what was not recorded; lineage says what each value was computed from; the end is
        the number after that of the last record.
        """
        return read_notes(segments)

    def finish(self, segments: Segments) -> None:
        """Remove the spool, as far as its files can be removed, and unlock it.

        The caller has delivered all of it. Damaged segments stay, under names that end in ".bad",
        and the folder with them.
        """
        segments.clear()
        if not any(self.folder.glob("*.bad")):
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)
        self.release()

    def release(self) -> None:
        """Unlock the spool, and leave its files as they are."""
        self._lock.release()


class WrittenSpool:
    """The spool of a session, which both writes and delivers it.

    limit: the most bytes that the spool may take on disk. The spool does not check this itself.

    writer: what writes the spool's files. frames: the messages with records, as an outbox (queue of
        messages) sends them. Both exist once `connect` was called.
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
        """Return the spool's frames (messages with records), for an outbox (queue of messages).

        The caller has to call this once, before anything is written.
        encoder: makes the frames; its definitions (of series, layouts and phases) are stored too.

        lineage: the outbox's list of messages with lineage, header entries and traced operations;
            what is added to it is stored too.

        changed: the condition whose lock guards the frames.
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
        """How many bytes the spool's segments have on disk."""
        return self._segments.nbytes

    def redirect(self, to: str) -> None:
        """Write into spool.json that the spool goes to the collector at `to` from now on.

        Raises OSError if the file cannot be written.
        """
        label = self._work.label
        if label is not None:
            self._work.label = label = replace(label, to=to)
            label.write(self.folder)

    def settle(self) -> None:
        """Block until all stored records survive a power loss, if they have to.

        Nothing is synced while records wait in memory. A disk that fails is only logged.
        """
        if self._power and not self.frames.spilling:
            self.writer.sync_or_warn()

    def tell(self) -> None:
        """Write new gaps (what was not recorded) and lineage to the disk, if it is time to do so.

        It is time if the last such writing is long enough ago: 2 seconds at first, doubled with
        each writing, up to 60 seconds. Without these writings gaps and lineage would only be
        written with the next record, and a full spool may accept no record for long. An error of
        the disk is ignored.
        """
        now = time.monotonic()
        if now < self._logged_at + self._logged_every:
            return
        self._logged_at, self._logged_every = now, min(60.0, 2 * self._logged_every)
        with contextlib.suppress(OSError):
            self.writer.notes()

    def leave(self) -> int:
        """Close and unlock the spool for another process; return how many records are lost.

        The spool is marked as that of a closed session. Lost are the records that are in memory
        alone, because the disk did not take them.
        """
        self.frames.save()
        with contextlib.suppress(OSError):
            self.writer.notes(closed=True)
        self._close()
        self._work.release()
        return self.frames.kept_records

    def remove(self) -> None:
        """Close, remove and unlock the spool; the caller knows that all of it is delivered."""
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
    """Make a spool in a new folder below `place`, for the writer that `hello` describes.

    Spools below `place` that dead processes left without records are removed.

    to: the address of the collector. among: the URL of all collectors if there are several; else
    "". power: whether records have to survive a power loss.
    limit: the most bytes on disk; None takes what `limit_of` says.
    segment_bytes: after how many bytes a new segment file begins; None for the usual number.
    disk: makes the calls to the file system; None for the usual ones.

    Raises OptionError if ANCHOR_SPOOL_LIMIT holds no size, OSError if the folder cannot be made.
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
    """Sync the spool's folder, its spool.json, and the parent folders made for it, to the disk.

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
    """Remove the spools below `place` that dead processes have left without records."""
    for folder in list(place.iterdir()):
        if folder.name.startswith(".") or not (folder / LABEL).exists():
            continue
        with contextlib.suppress(OSError, StoreError):
            if not any(set(folder.iterdir()) - {folder / LABEL, folder / "lock"}):
                work = OwnedSpool.take(folder)
                shutil.rmtree(folder, ignore_errors=True)
                work.release()


def spooled_by(place: Path, run: str, rank: int, writer: str) -> int | None:
    """Return how many records a dead writer has put into its spool, delivered ones included.

    Returns None if there is no spool of this writer, and 0 for a spool without segments, for
    instance because all of its records were delivered.
    place: the directory with the spools. writer: the writer's secret, in hex.
    """
    for folder in spools_of(place, run, rank):
        label = SpoolLabel.read(folder)
        if label is not None and label.writer_id == writer:
            return read_notes(Segments.of_folder(folder)).end
    return None
