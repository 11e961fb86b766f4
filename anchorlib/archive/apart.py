"""Checks that a store is not its own archive: removing an archived run would remove its archive."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.store import run_directory
from anchorlib.store.objects import Shelf

__all__ = ["check_apart"]


def check_apart(store: Path, run: str, shelf: Shelf) -> None:
    """Raises OptionError where the archive is the store, or has this run in the store's folder."""
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
