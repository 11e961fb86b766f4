"""Finds the run that a text names: by its name in a store, its path, or an address that ends in it.

run1                         a run of the store
anchors/run1.zarr            a run, by its path
grpc://host:port/run1        a run that a collector serves
s3://bucket/prefix/run1      a run that is archived in an object store
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import (
    AnchorError,
    InvalidNameError,
    RunNotFoundError,
    StoreError,
)
from anchorlib.names import check_stored_run_name, escape, suggest
from anchorlib.store.disk import ArchiveNote, note_of, noted_runs
from anchorlib.store.format import INDEX
from anchorlib.store.locations import LocalLocation, Location
from anchorlib.store.objects import ObjectLocation, is_object_url
from anchorlib.store.runs.archived_files import archived_run
from anchorlib.store.runs.evictable_run import EvictableRun
from anchorlib.store.runs.store_lookup import (
    collector_store,
    has_ranks,
    locate_store,
    object_store,
    run_within,
    store_text,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = [
    "FoundRun",
    "archived_alone",
    "as_zarr",
    "find_run",
    "has_run",
    "list_runs",
    "names_path",
]

SUFFIX = ".zarr"


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run's name, and the location from which it is read; keys are relative to the run.

    archive: the address of the archive that has the run, where the store has no files of it; else
        "".
    """

    name: str
    location: Location
    archive: str = ""


def as_zarr(location: Location) -> Store:
    """Return the location as a read-only zarr store, for zarr-python and xarray."""
    from anchorlib.store.locations.zarr_view import LocationStore  # which loads zarr

    return LocationStore(location)


def list_runs(store: Location) -> list[str]:
    """Return the names of the runs in a store, sorted.

    A directory also lists runs that were archived and removed, as long as it has a note that says
    where they are archived.
    """
    folders = (name.removesuffix("/") for name in store.list("") if name.endswith(f"{SUFFIX}/"))
    runs = (folder for folder in folders if _may_be_run(folder))
    names = {f.removesuffix(SUFFIX) for f in runs if _is_run(run_within(store, f))}
    if isinstance(store, LocalLocation):
        names |= {*noted_runs(store.root)}
    return sorted(names)


def archived_alone(run: str, store: str | Path | None = None) -> tuple[Path, ArchiveNote] | None:
    """Return (store, note) for a run whose files are in its archive alone; None for other runs.

    The result has the store's directory, and the note, which is the file that says where the run
    was archived. The archive itself is not asked: it may have moved, or be gone. Also None where
    `run` is a path or an address, or the store is not a directory. Raises StoreError for a damaged
    note. store: None means the variable ANCHOR_STORE, else "anchors".
    """
    where = store_text(store)
    if "://" in run or "://" in where or names_path(run) or not _may_be_run(run):
        return None
    place = Path(where)
    note = None if os.path.lexists(place / f"{run}{SUFFIX}") else note_of(place, run)
    return None if note is None else (place, note)


def has_run(store: Path, run: str) -> bool:
    """Return whether the store in directory `store` has ranks of a run of exactly this name.

    Raises InvalidNameError where no run can have the name, StoreError where the directory cannot be
    read.
    """
    check_stored_run_name(run)
    return has_ranks(LocalLocation(store / f"{run}{SUFFIX}"))


def find_run(run: str | Path, store: str | Path | None = None) -> FoundRun:
    """Find the run that `run` names: a name in `store`, a path, or an address that ends in a name.

    store: where to look for a name; not used for a path or an address. None means the variable
        ANCHOR_STORE, else "anchors".

    Raises RunNotFoundError, with similar names in the message, where there is no such run;
    OptionError for a malformed address; MissingExtraError for an object store where the package
    obstore is not installed; CollectorError where a collector or an object store refuses or cannot
    be reached; StoreError where the store cannot be read.
    """
    text = str(run)
    if "://" in text:
        location, name = object_store(text) if is_object_url(text) else collector_store(text)
        if not name:
            url = escape(text.rstrip("/"))
            raise RunNotFoundError(f"{url} names no run: write {url}/run1")
        return _in_store(name, location, text.rstrip("/").rpartition("/")[0])
    if names_path(text):
        return _at_path(Path(text))
    where = store_text(store)
    return _in_store(text, locate_store(where), where)


def names_path(run: str) -> bool:
    """Return whether a text is a path ("anchors/run1.zarr", ".") and not the name of a run."""
    return os.sep in run or run.endswith(SUFFIX) or run in (".", "..")


def _at_path(path: Path) -> FoundRun:
    for candidate in (path, Path(f"{path}{SUFFIX}")):
        if has_ranks(LocalLocation(candidate)):
            return FoundRun(candidate.resolve().name.removesuffix(SUFFIX), EvictableRun(candidate))
    what = "holds no run" if path.exists() else "is not there"
    raise RunNotFoundError(
        f"{escape(str(path))} {what}; the path of a run looks like anchors/run1.zarr"
    )


def _in_store(name: str, store: Location, where: str) -> FoundRun:
    try:
        check_stored_run_name(name)
    except InvalidNameError as error:
        raise RunNotFoundError(f"there is no such run: {error}") from error
    location = run_within(store, f"{name}{SUFFIX}")
    # To find an index takes one request; to list a thousand ranks takes two.
    is_indexed = isinstance(store, ObjectLocation) and location.get(INDEX, 0, 1) is not None
    if is_indexed or has_ranks(location):
        if isinstance(location, LocalLocation):
            location = EvictableRun(location.root)
        return FoundRun(name, location)
    if isinstance(store, LocalLocation) and (note := note_of(store.root, name)) is not None:
        return FoundRun(name, archived_run(note), note.place)
    known = list_runs(store)
    hint = suggest(name, known) or "; `anchor runs` lists what it holds"
    if not known:
        hint = "; it holds no run at all"
    raise RunNotFoundError(f"no run {name!r} in {escape(where)}{hint}")


def _is_run(location: Location) -> bool:
    """Return whether there are ranks at a location; True also if that cannot be read.

    Opening the run then reports what is wrong.
    """
    try:
        return has_ranks(location)
    except StoreError:
        return True


def _may_be_run(folder: str) -> bool:
    try:
        check_stored_run_name(folder.removesuffix(SUFFIX))
    except AnchorError:
        return False
    return True
