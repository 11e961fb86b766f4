"""Checks that a store is not its own archive: removing an archived run would remove its archive."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.store import run_directory
from anchorlib.store.objects import Shelf

__all__ = ["check_apart"]


def check_apart(store: Path, run: str, shelf: Shelf) -> None:
    """Raise OptionError where the archive `shelf` is the store itself.

    That is so if both are one directory, or if the folder of this run is the same in both, for
    instance through a link. An archive in an object store always passes.
    """
    if "://" in shelf.place:
        return
    place = Path(shelf.place)
    here, there = run_directory(store, run), run_directory(place, run)
    same = here.exists() and there.exists() and here.samefile(there)
    if same or store.resolve() == place.resolve():
        raise OptionError(
            f"{escape(shelf.place)} is the store of run {run!r}, and cannot be its archive: name "
            "another directory"
        )
