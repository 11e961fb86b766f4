"""Finds the store that a text names: a directory, what collectors serve, or an archive.

anchors                      a directory of runs
grpc://host:port             what a collector serves
grpc://a:port,b:port         what several collectors serve together
s3://bucket/prefix           what is archived in an object store (also gs://, az://)
"""

from __future__ import annotations

import os
from pathlib import Path

from anchorlib.errors import OptionError, RunNotFoundError
from anchorlib.names import escape
from anchorlib.store.format import rank_of
from anchorlib.store.locations import (
    CollectorLocation,
    LocalLocation,
    Location,
    SeveralCollectors,
    Within,
)
from anchorlib.store.objects import is_object_url, object_location, parse_object_url

__all__ = [
    "DEFAULT_STORE",
    "collector_store",
    "has_ranks",
    "locate_store",
    "object_store",
    "run_within",
    "store_text",
]

DEFAULT_STORE = "anchors"


def locate_store(store: str | Path | None = None) -> Location:
    """Return the location of a store; None means the variable ANCHOR_STORE, else "anchors".

    Raises OptionError for an address of an unknown kind, RunNotFoundError where a directory does
    not exist or is a run, MissingExtraError for an object store where the package obstore is not
    installed. A collector is not asked here, so CollectorError comes with the first read.
    """
    text = store_text(store)
    if is_object_url(text):
        return object_location(parse_object_url(text))
    if "://" in text:
        return collector_store(text)[0]
    path = Path(text)
    if not path.is_dir():
        what = "it is a file" if path.exists() else "there is no such directory"
        raise RunNotFoundError(f"no store at {escape(text)}: {what}")
    if has_ranks(LocalLocation(path)):
        raise RunNotFoundError(
            f"{escape(text)} is a run, not a store: the store is the directory that holds it"
        )
    return LocalLocation(path)


def store_text(store: str | Path | None) -> str:
    """Return the store as text; None means the variable ANCHOR_STORE, else "anchors"."""
    return str(store if store is not None else os.environ.get("ANCHOR_STORE") or DEFAULT_STORE)


def object_store(text: str) -> tuple[Location, str]:
    """Return the location of the object store that holds a run, and the run's name.

    text: the URL of the run. The name is "" where the URL names a bucket alone. Raises OptionError
    for a malformed URL, MissingExtraError where the package obstore is not installed.
    """
    address, name = parse_object_url(text).split()
    return object_location(address), name


def collector_store(text: str) -> tuple[Location, str | None]:
    """Return the location of what the collectors in a URL serve, and the run's name in the URL.

    The name is None where the URL names no run. Raises OptionError for a URL that is not of
    collectors, InvalidNameError for a name that no run can have.
    """
    scheme = text.partition("://")[0]
    if scheme not in ("grpc", "grpcs"):
        raise OptionError(
            f"{escape(scheme)}:// cannot be read; give a directory, grpc://host:port, "
            "grpcs://host:port or s3://bucket/prefix"
        )
    # gRPC is loaded only where a collector is read.
    from anchorlib.wire import ReaderClient, parse_addresses

    addresses = parse_addresses(text)
    collectors = [CollectorLocation(ReaderClient(one)) for one in addresses]
    return collectors[0] if len(collectors) == 1 else SeveralCollectors(collectors), addresses[
        0
    ].run


def run_within(store: Location, folder: str) -> Location:
    """Return the location of a run's folder ("run1.zarr") in a store.

    Nothing is read, so the folder need not exist. In a local store it may be a symbolic link.
    """
    if isinstance(store, LocalLocation):
        return LocalLocation(store.root / folder)
    return Within(store, folder)


def has_ranks(location: Location) -> bool:
    """Return whether there is a rank at `location`, so that it is the location of a run.

    Names of folders and files are looked at, nothing is opened.
    """
    return any(rank_of(name.rstrip("/")) is not None for name in location.list(""))
