"""Reads files of runs that were archived and removed here, under their old keys of the store."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from anchorlib.errors import RunNotFoundError
from anchorlib.names import escape
from anchorlib.store.disk import ArchiveNote, note_of, noted_runs
from anchorlib.store.format import INDEX, is_key_of_all_ranks, part_of, rank_of
from anchorlib.store.locations import Location, listed_parts
from anchorlib.store.runs.store_lookup import has_ranks, locate_store, run_within
from anchorlib.store.seal import rank_location

__all__ = ["ArchivedRuns", "archived_run"]

_SUFFIX: Final = ".zarr"
_MOST: Final = 64  # opened archives that are kept
_MOST_RANKS: Final = 2  # whose last read rows are kept: up to 96 MiB each
_OF_THE_RUN: Final = ("zarr.json", INDEX)
_CHUNK: Final = "c."  # begins the chunk files of a live rank; a sealed rank's are named c/0


def archived_run(note: ArchiveNote) -> Location:
    """Return the location of an archived run, in the archive that the run's note names.

    A note is the file that says where a run was archived. Raises RunNotFoundError where the archive
    does not have the run.
    """
    location = run_within(locate_store(note.place), f"{note.run}{_SUFFIX}")
    if has_ranks(location):
        return location
    raise RunNotFoundError(
        f"{note.run} was archived to {escape(note.place)} and removed here, and is not there now"
    )


class ArchivedRuns:
    """Gives access, by keys of a store, to runs that were archived and removed from the store.

    A store has a note of each archived run, a file that says where its archive is. The bytes are
    read from that archive. root: the store's directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[str, str, int], Location] = {}
        self._lock = Lock()
        self._ranks: dict[tuple[str, str, int, str], Location] = {}
        self._reading = Lock()

    def get(self, key: str, start: int, length: int | None) -> bytes | None:
        """Return bytes of an archived run's file; None where there is no such file.

        A file that is about all ranks of the run, such as its index, counts as missing where the
        archive also has ranks of other stores.
        key: the file's path in the store, such as "run1.zarr/rank0/zarr.json". start: the offset of
        the first byte. length: the most bytes to return; None reads to the end of the file.
        Raises CollectorError where the archive cannot be reached, RunNotFoundError where the
        archive does not have the run.
        """
        folder, _, inside = key.partition("/")
        archived = self._archived(folder) if inside else None
        if archived is None:
            return None
        location, note = archived
        if not _is_ours(inside.partition("/")[0], note):
            return None
        # Other collectors archive their ranks of a run into the same folder. The index and digests
        # tell of all of them, so these are given out only where every rank was in this store.
        told_of_all = inside == INDEX or is_key_of_all_ranks(inside)
        if told_of_all and {*listed_parts(location)} != {*note.parts}:
            return None
        data = location.get(inside, start, length)
        return self._as_it_was(archived, inside, start, length) if data is None else data

    def folders(self) -> list[str]:
        """Return the folder names ("run1.zarr/") of all runs of which the store has a note."""
        return [f"{run}{_SUFFIX}/" for run in noted_runs(self._root)]

    def list(self, key: str) -> list[str]:
        """Return the names in a folder of an archived run; [] for other runs.

        A run counts as archived here if the store has a note of it, a file that says where its
        archive is, and none of its files. key: the folder's path in the store, such as "run1.zarr"
        or "run1.zarr/rank0". Raises what `get` raises.
        """
        folder, _, inside = key.partition("/")
        archived = self._archived(folder)
        if archived is None:
            return []
        location, note = archived
        if inside and not _is_ours(inside.partition("/")[0], note):
            return []
        names = location.list(inside)
        return names if inside else [one for one in names if _is_ours(one.rstrip("/"), note)]

    def _as_it_was(
        self, archived: tuple[Location, ArchiveNote], inside: str, start: int, length: int | None
    ) -> bytes | None:
        """Return bytes of a chunk file that a rank had before it was archived.

        The file is rebuilt from the rows of the archived rank. A reader that opened the run before
        it was archived asks for such files until it opens the run again. Return None for a key that
        is no chunk file of a rank, or that the rank never had.

        archived: the run's folder in the archive, and its note. inside: the path of the file below
            the run's folder. start, length: as in `get`.
        """
        folder, _, key = inside.partition("/")
        rank = rank_of(folder)
        if rank is None or not key.rpartition("/")[2].startswith(_CHUNK):
            return None
        location, note = archived
        name = (note.run, note.place, note.archived_ns, folder)
        with self._reading:
            known = self._ranks.pop(name, None) or rank_location(location, rank, part_of(folder))
            self._ranks[name] = known
            while len(self._ranks) > _MOST_RANKS:
                del self._ranks[next(iter(self._ranks))]
            return known.get(key, start, length)

    def _archived(self, folder: str) -> tuple[Location, ArchiveNote] | None:
        """Return the archived folder of a run that is in its archive alone, and its note.

        folder: the run's folder, "run1.zarr". A note is the file that says where a run was
            archived. None for runs whose files are here, or without a note.
        """
        run = folder.removesuffix(_SUFFIX)
        if not run or run == folder or (self._root / folder).is_dir():
            return None
        note = note_of(self._root, run)
        if note is None:
            return None
        key = (run, note.place, note.archived_ns)
        with self._lock:
            known = self._known.get(key)
        if known is None:
            known = archived_run(note)
            with self._lock:
                while len(self._known) >= _MOST:
                    del self._known[next(iter(self._known))]
                self._known[key] = known
        return known, note


def _is_ours(name: str, note: ArchiveNote) -> bool:
    """Return whether `name`, in a run's folder of the archive, is of what this store archived.

    Such names are the ranks and parts that `note` lists, and the files about the whole run. The
    folder may also hold other files, and ranks that other collectors archived; this store must not
    give them out.
    """
    rank = rank_of(name)
    if rank is None:
        return name in _OF_THE_RUN or is_key_of_all_ranks(name)
    return (rank, part_of(name)) in note.parts
