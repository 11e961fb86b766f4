"""Which store and which run a text names: a directory, a path to a run, or a URL.

anchors                      a directory of runs
anchors/run1.zarr            one run, by its path
grpc://host:port             what a collector serves
grpc://host:port/run1        one run of it
grpc://a:port,b:port         what several collectors serve together
s3://bucket/prefix           what is archived in an object store (also gs://, az://)
s3://bucket/prefix/run1      one run of it
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anchorlib.errors import (
    AnchorError,
    InvalidNameError,
    OptionError,
    RunNotFoundError,
    StoreError,
)
from anchorlib.names import check_stored_run_name, escape, suggest
from anchorlib.store.disk import ArchiveNote, note_of, noted_runs
from anchorlib.store.format import INDEX, rank_of
from anchorlib.store.locations import (
    CollectorLocation,
    LocalLocation,
    Location,
    SeveralCollectors,
    Within,
)
from anchorlib.store.objects import (
    ObjectLocation,
    is_object_url,
    object_location,
    parse_object_url,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = [
    "DEFAULT_STORE",
    "FoundRun",
    "archived_alone",
    "archived_location",
    "as_zarr",
    "find_run",
    "has_run",
    "list_runs",
    "locate_store",
    "names_path",
    "store_text",
]

DEFAULT_STORE = "anchors"
SUFFIX = ".zarr"


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run's name and the location whose keys begin at its root.

    archive: the archive that has it, where the store has nothing of it but a note; else "".
    """

    name: str
    location: Location
    archive: str = ""


def locate_store(store: str | Path | None = None) -> Location:
    """The location of a store; None means ANCHOR_STORE, else "anchors".

    Raises OptionError for an address of a form that is not served, RunNotFoundError where a
    directory is not there; CollectorError comes with the first read.
    """
    text = store_text(store)
    if is_object_url(text):
        return object_location(parse_object_url(text))
    if "://" in text:
        return _collector(text)[0]
    path = Path(text)
    if not path.is_dir():
        what = "it is a file" if path.exists() else "there is no such directory"
        raise RunNotFoundError(f"no store at {escape(text)}: {what}")
    if _has_ranks(LocalLocation(path)):
        raise RunNotFoundError(
            f"{escape(text)} is a run, not a store: the store is the directory that holds it"
        )
    return LocalLocation(path)


def as_zarr(location: Location) -> Store:
    """The location as a read-only zarr store, for zarr-python and xarray."""
    from anchorlib.store.locations.zarr_view import LocationStore  # which loads zarr

    return LocationStore(location)


def list_runs(store: Location) -> list[str]:
    """The names of the runs in a store, sorted."""
    folders = (name.removesuffix("/") for name in store.list("") if name.endswith(f"{SUFFIX}/"))
    runs = (folder for folder in folders if _may_be_run(folder))
    found = {f.removesuffix(SUFFIX) for f in runs if _is_run(_within(store, f))}
    if isinstance(store, LocalLocation):
        found |= {*noted_runs(store.root)}
    return sorted(found)


def archived_alone(run: str, store: str | Path | None = None) -> tuple[Path, ArchiveNote] | None:
    """The directory and the note of a run whose files are in its archive alone; None for others.

    The archive itself is not asked: it may have moved, or be gone. Raises StoreError for a damaged
    note.
    """
    where = store_text(store)
    if "://" in run or "://" in where or names_path(run) or not _may_be_run(run):
        return None
    place = Path(where)
    note = None if os.path.lexists(place / f"{run}{SUFFIX}") else note_of(place, run)
    return None if note is None else (place, note)


def archived_location(store: Path, run: str) -> Location | None:
    """The location of a run whose files are in its archive alone; None for every other run.

    Raises as `find_run`.
    """
    if os.path.lexists(store / f"{run}{SUFFIX}") or (note := note_of(store, run)) is None:
        return None
    return _elsewhere(note).location


def has_run(store: Path, run: str) -> bool:
    """Whether a run of exactly this name is in a directory. Raises StoreError as reading does."""
    check_stored_run_name(run)
    return _has_ranks(LocalLocation(store / f"{run}{SUFFIX}"))


def find_run(run: str | Path, store: str | Path | None = None) -> FoundRun:
    """The run that `run` names: a name in `store`, a path, or an address that ends in a name.

    Raises RunNotFoundError, with suggestions.
    """
    text = str(run)
    if "://" in text:
        location, name = _archived(text) if is_object_url(text) else _collector(text)
        if not name:
            url = escape(text.rstrip("/"))
            raise RunNotFoundError(f"{url} names no run: write {url}/run1")
        return _in_store(name, location, text.rstrip("/").rpartition("/")[0])
    if names_path(text):
        return _at_path(Path(text))
    where = store_text(store)
    return _in_store(text, locate_store(where), where)


def store_text(store: str | Path | None) -> str:
    """The store as text; None means ANCHOR_STORE, else "anchors"."""
    return str(store if store is not None else os.environ.get("ANCHOR_STORE") or DEFAULT_STORE)


def names_path(run: str) -> bool:
    """Whether the text is a path to a run, so that no store is searched for it."""
    return os.sep in run or run.endswith(SUFFIX) or run in (".", "..")


def _archived(text: str) -> tuple[Location, str]:
    address, name = parse_object_url(text).split()
    return object_location(address), name


def _collector(text: str) -> tuple[Location, str | None]:
    scheme = text.partition("://")[0]
    if scheme not in ("grpc", "grpcs"):
        raise OptionError(
            f"{escape(scheme)}:// cannot be read; give a directory, grpc://host:port, "
            "grpcs://host:port or s3://bucket/prefix"
        )
    # gRPC is loaded only where a collector is read.
    from anchorlib.wire import ReaderClient, parse_addresses

    addresses = parse_addresses(text)
    found = [CollectorLocation(ReaderClient(one)) for one in addresses]
    return found[0] if len(found) == 1 else SeveralCollectors(found), addresses[0].run


def _at_path(path: Path) -> FoundRun:
    for candidate in (path, Path(f"{path}{SUFFIX}")):
        if _has_ranks(LocalLocation(candidate)):
            return FoundRun(candidate.resolve().name.removesuffix(SUFFIX), LocalLocation(candidate))
    what = "holds no run" if path.exists() else "is not there"
    raise RunNotFoundError(
        f"{escape(str(path))} {what}; the path of a run looks like anchors/run1.zarr"
    )


def _in_store(name: str, store: Location, where: str) -> FoundRun:
    try:
        check_stored_run_name(name)
    except InvalidNameError as error:
        raise RunNotFoundError(f"there is no such run: {error}") from error
    location = _within(store, f"{name}{SUFFIX}")
    # To find an index takes one request; to list a thousand ranks takes two.
    is_indexed = isinstance(store, ObjectLocation) and location.get(INDEX, 0, 1) is not None
    if is_indexed or _has_ranks(location):
        return FoundRun(name, location)
    if isinstance(store, LocalLocation) and (note := note_of(store.root, name)) is not None:
        return _elsewhere(note)
    known = list_runs(store)
    hint = suggest(name, known) or "; `anchor runs` lists what it holds"
    if not known:
        hint = "; it holds no run at all"
    raise RunNotFoundError(f"no run {name!r} in {escape(where)}{hint}")


def _elsewhere(note: ArchiveNote) -> FoundRun:
    """The run of a note, in the archive that the note names. Raises RunNotFoundError."""
    location = _within(locate_store(note.place), f"{note.run}{SUFFIX}")
    if _has_ranks(location):
        return FoundRun(note.run, location, note.place)
    raise RunNotFoundError(
        f"{note.run} was archived to {escape(note.place)} and removed here, and is not there now"
    )


def _within(store: Location, folder: str) -> Location:
    """The location of a run's folder; in a directory the user may have made that folder a link."""
    if isinstance(store, LocalLocation):
        return LocalLocation(store.root / folder)
    return Within(store, folder)


def _is_run(location: Location) -> bool:
    """Whether there are ranks; True where that cannot be read, for opening the run reports it."""
    try:
        return _has_ranks(location)
    except StoreError:
        return True


def _has_ranks(location: Location) -> bool:
    return any(rank_of(name.rstrip("/")) is not None for name in location.list(""))


def _may_be_run(folder: str) -> bool:
    try:
        check_stored_run_name(folder.removesuffix(SUFFIX))
    except AnchorError:
        return False
    return True
