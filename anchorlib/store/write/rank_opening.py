"""Opens a rank for a writer: creates it, or prepares an existing one to be continued.

The last writer may have been killed in the middle of a write: rows and catalogue bytes that it
wrote and did not commit are blanked first.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from anchorlib.errors import AnchorError, RunExistsError, RunNotFoundError, StoreError
from anchorlib.names import escape
from anchorlib.store.disk import NodeWriter, RankQuota, forget, note_of, run_document
from anchorlib.store.format import (
    CATALOG_CHUNK,
    INDEX,
    ROW,
    ROWS_PER_CHUNK,
    VERSION,
    Part,
    chunk_key,
    digests_key,
    encode,
    group_json,
    rank_name,
    run_directory,
    stamp,
    steps_key,
)
from anchorlib.store.locations import LocalLocation
from anchorlib.store.read import RankReader
from anchorlib.store.write.forms import OpenForm
from anchorlib.store.write.publishing import catalogue_json, tell_series
from anchorlib.store.write.table import (
    CatalogFile,
    erase_rows_after,
    make_columns,
)

RANK_FILES = 64  # about as many files and folders as an empty rank has

__all__ = ["RankPlace", "resume_counters", "store_errors", "take_up"]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank a writer opens: its store, run and number, and how it is created if new.

    tree: makes files and zarr groups in the store.
    author: the name by which the collector knows the writer; kept with a run that is new.
    part: the piece of the rank that this store holds, where other collectors hold the rest; None
        where this store holds all of it.
    """

    store: Path
    run: str
    rank: int
    tree: NodeWriter
    author: str = ""
    part: Part | None = None

    @property
    def number(self) -> int:
        """The number of the rank's part that this store holds; 0 where it holds the whole rank.

        Where several collectors share a rank, each holds a part of it.
        """
        return self.part.number if self.part is not None else 0

    @property
    def first(self) -> int:
        """The number of the first record that this writer writes into this store.

        A writer numbers all its records in one sequence, whichever collector it sends them to. The
        number is 0 where this store holds the whole rank.
        """
        return self.part.first if self.part is not None else 0

    @property
    def path(self) -> Path:
        """The directory of the rank's zarr group."""
        return run_directory(self.store, self.run) / rank_name(self.rank, self.number)

    def goes_on(self, reader: RankReader, claim: bytes) -> bool:
        """Return whether the writer with this claim may continue the rank's last attempt.

        The writer may where the last attempt has the same claim, and the first record that the
        writer sends here (`first`) leaves no hole behind the records that are stored.
        claim: the hash of the writer's secret; an empty claim may continue nothing.
        """
        attempts = reader.catalogue.attempts
        if not (claim and attempts and attempts[-1].claim == claim):
            return False
        last = attempts[-1]
        return last.first <= self.first <= last.first + reader.committed - last.first_row

    def __str__(self) -> str:
        return f"rank {self.rank} of run {self.run!r} in {self.store}"

    def take(
        self,
        claim: bytes,
        budget: RankQuota,
        *,
        resume: bool,
        overwrite: bool,
        acknowledged: int = 0,
    ) -> RankReader:
        """Return a reader of the rank; a rank that is new or to be overwritten is created first.

        The store's note of an archive of the run is deleted, because the archive will lack the
        records that are written from now on.

        claim: the hash of the writer's secret. budget: counts the files that are made.
        resume: whether to continue a rank that exists, as its next attempt. overwrite: whether to
            replace it by an empty rank. Neither counts where the writer's own attempt goes on.
        acknowledged: how many records this writer had delivered before.

        Raises RunExistsError where the rank has records of an attempt and the caller asked for
        neither resume nor overwrite, where a rank to be continued takes no more records (it is
        sealed, or of an old format), or where the run was archived and removed from this store;
        StoreError where the `acknowledged` records of this writer are gone, or another attempt has
        continued the rank since this writer began.
        """
        run = run_directory(self.store, self.run)
        existing = self._existing(damaged=overwrite)
        attempts = existing.catalogue.attempts if existing is not None else []
        same = existing is not None and self.goes_on(existing, claim)
        # The writer recorded here before, went on at another collector, and comes back because
        # that one is gone as well.
        back = self.part is not None and bool(claim) and claim in {one.claim for one in attempts}
        if acknowledged > self.first and not same:
            raise StoreError(
                f"{self} does not go on from the {acknowledged} records that this writer had "
                "delivered: the run was moved, removed, or recorded anew in between"
            )
        if not (same or back) and claim and any(attempt.claim == claim for attempt in attempts):
            # Records that it sent may be stored although their acknowledgement never reached it:
            # writing them again here would store them twice.
            raise StoreError(
                f"another attempt has gone on with {self} since this writer began: send the rest "
                "of its records as the next attempt, with `anchor push`"
            )
        if attempts and not (same or back or resume or overwrite):
            raise RunExistsError(
                f"{self} exists already: resume it, overwrite it (resume=True or overwrite=True of "
                "start), or take another run name"
            )
        if existing is not None and attempts and (same or back or not overwrite):
            if existing.is_sealed:
                raise RunExistsError(
                    f"{self} is sealed, and takes no more records: take another run name, or "
                    "overwrite it (overwrite=True of start)"
                )
            if existing.catalogue.version != VERSION:
                raise RunExistsError(
                    f"{self} is of format {existing.catalogue.version}, which is read and no "
                    "longer written: take another run name, or overwrite it (overwrite=True of "
                    "start)"
                )
            forget(self.store, self.run)  # records written from now on are not in the archive
            return existing
        if not (overwrite or run.exists()):
            self._check_archive()
        forget(self.store, self.run)
        budget.made_files(RANK_FILES)
        _forget_ranks(run)
        create_rank(run, self.rank, self.tree, self.author, self.number)
        return RankReader(LocalLocation(run), self.rank, part=self.number)

    def _check_archive(self) -> None:
        """Raise RunExistsError for an archived run whose files are gone from this store."""
        note = note_of(self.store, self.run)
        if note is not None:
            raise RunExistsError(
                f"run {self.run!r} was archived to {escape(note.place)} and removed here: what is "
                "archived never changes; take another run name"
            )

    def _existing(self, *, damaged: bool) -> RankReader | None:
        run = LocalLocation(run_directory(self.store, self.run))
        try:
            return RankReader(run, self.rank, part=self.number)
        except RunNotFoundError:
            return None
        except StoreError:
            if damaged:  # a damaged rank may be overwritten like any other
                return None
            raise


_OTHER_STORE: Final = "choose a store that can be written (store=, --store or ANCHOR_STORE)"
_TO_DO: Final = {
    errno.EROFS: _OTHER_STORE,
    errno.EACCES: _OTHER_STORE,
    errno.EPERM: _OTHER_STORE,
    errno.ENOTDIR: "a store is a directory: choose another (store=, --store or ANCHOR_STORE)",
    errno.ENOLCK: "its file system grants no locks (flock): mount it with locks, or choose a store "
    "on another file system",
}


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn an OSError inside the `with` into a StoreError of one line: what, why, what to do.

    what: the task that failed, as the line begins: "cannot open run 'run1' in anchors".
    """
    try:
        yield
    except AnchorError:
        raise
    except OSError as error:
        todo = _TO_DO.get(error.errno or 0)
        reason = error.strerror or error
        raise StoreError(f"{what}: {reason}{f'; {todo}' if todo else ''}") from error


def create_rank(run: Path, rank: int, tree: NodeWriter, author: str = "", part: int = 0) -> None:
    """Create an empty rank on disk by one rename; an existing rank with this name is removed.

    author: who makes the run, if it is new. part: the part of the rank, 0 for all of it.
    """
    tree.ensure(run, run_document(run, author))
    made = tree.fresh()
    made.mkdir()
    tree.make(made / "catalog", catalogue_json(0))
    for group in ("records", "forms"):
        tree.make(made / group, group_json(stamp()))
    make_columns(made / "records", tree)
    uid, now = os.urandom(8).hex(), time.time_ns()
    about = {"rank": rank, "version": VERSION, "uid": uid, "created_ns": now, "checked": 0}
    first = encode(about)
    tree.write(made / "catalog" / chunk_key(0, 0), first.ljust(CATALOG_CHUNK, b"\0"))
    tree.replace(made, group_json(stamp(rank=rank, state="open", attempts=[])))
    tree.move_in(made, run / rank_name(rank, part))


@dataclass(slots=True)
class Resumed:
    """The counters with which the writer of a resumed rank continues.

    pairs: histogram pairs stored. order: one more than the largest `order` of all rows.
    nbytes: bytes of the rows and values stored.
    """

    pairs: int = 0
    order: int = 0
    nbytes: int = 0


def take_up(reader: RankReader, place: RankPlace) -> CatalogFile:
    """Blank rows and catalogue bytes that were never committed; return the catalogue's file.

    reader: reads the rank at `place`. The next line will be appended to the file behind the last
        committed line.
    """
    erase_rows_after(place.path / "records", reader.committed)
    file = CatalogFile(place.path / "catalog", reader.catalogue_end, place.tree)
    file.erase_rest()
    return file


def resume_counters(reader: RankReader, forms: Sequence[OpenForm]) -> Resumed:
    """Set each form's counters from its committed rows; return the counters of the rank.

    A form has the arrays of all records of one dtype and shape.
    """
    resumed = Resumed(nbytes=reader.committed * ROW.itemsize)
    rows = np.zeros(len(forms), np.int64)
    for start, stop in table_chunks(reader.committed):
        form_of = reader.span("form", start, stop)
        np.maximum.at(rows, form_of, reader.span("row", start, stop) + 1)
        lengths = np.maximum(reader.span("hist_length", start, stop), 0)
        ends = reader.span("hist_offset", start, stop) + lengths
        resumed.pairs = max(resumed.pairs, int(ends.max()))
        resumed.order = max(resumed.order, int(reader.span("order", start, stop).max()) + 1)
        if start < reader.catalogue.published:
            tell_series(reader, forms, start, min(stop, reader.catalogue.published))
    for form, count in zip(forms, rows.tolist(), strict=True):
        form.rows = count
        if form.entry.flat:
            form.elements = reader.flat_elements(form.entry, count)
        if form.entry.array is not None:
            resumed.nbytes += (form.elements if form.entry.flat else count) * form.nbytes
    return resumed


def table_chunks(rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, end) of each chunk of a table of `rows` rows; the end is exclusive."""
    for start in range(0, rows, ROWS_PER_CHUNK):
        yield start, min(start + ROWS_PER_CHUNK, rows)


def _forget_ranks(run: Path) -> None:
    """Delete the files about all ranks of a run together: index, digests and figures of steps.

    Only a run that came from an archive has such files. Records written now would make them
    outdated. run: the run's directory.
    """
    of_all = (run.glob(made("*")) for made in (digests_key, steps_key))
    for one in (run / INDEX, *chain(*of_all)):
        one.unlink(missing_ok=True)
