"""Writes a run as a zarr hierarchy with an array for each tensor: what `Run.zarr` shows, as files.

A run on disk has an array for each dtype and shape instead.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.progress import Progress

if TYPE_CHECKING:
    from anchorlib import Series
    from anchorlib.store import Location

__all__ = ["write_zarr"]

_OF_ARRAYS = 6  # parts of the key of an array's zarr.json


def write_zarr(run: str, series: Sequence[Series], place: Path, tick: Progress) -> dict[str, Any]:
    """Writes series into the folder `place`; the folder appears complete, or not at all.

    Returns what the command prints: a dict of `zarr`, the folder, and `arrays`, how many arrays of
    values were written. An earlier export in the folder is replaced. Raises OptionError where the
    folder cannot be written, or holds anything but an earlier export.

    run: the run's name. tick: called with the number of files written so far, and their total.
    """
    from anchorlib.reading import tensor_tree

    if not _may_be_replaced(place):
        raise OptionError(
            f"{escape(str(place))} holds other files than an export: give --zarr a new folder"
        )
    target = Path(os.path.realpath(place))
    part, old = (target.with_name(f".{target.name}.{os.getpid()}.{end}") for end in ("part", "old"))
    tree = tensor_tree(run, series)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays = _write(tree, part, tick)
        if target.exists():
            target.rename(old)
        part.rename(target)
    except OSError as error:
        raise OptionError(f"cannot write {escape(str(place))}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return {"zarr": str(place), "arrays": arrays}


def _write(tree: Location, folder: Path, tick: Progress) -> int:
    """Writes all files of a zarr hierarchy into a folder; returns how many arrays of values it has.

    tree: the hierarchy, from which the files are read.
    """
    keys = list(_keys(tree, ""))
    for done, key in enumerate(keys, 1):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tree.get(key) or b"")
        tick(done, len(keys))
    nodes = (key.split("/") for key in keys)
    return sum(
        len(node) == _OF_ARRAYS and node[4].startswith("value") and node[5] == "zarr.json"
        for node in nodes
    )


def _keys(tree: Location, folder: str) -> Iterator[str]:
    for name in tree.list(folder):
        key = f"{folder}/{name}".strip("/")
        if name.endswith("/"):
            yield from _keys(tree, key)
        else:
            yield key


def _may_be_replaced(place: Path) -> bool:
    """Returns whether a folder may be replaced: it is missing, empty, or an earlier export."""
    if not place.exists():
        return True
    try:
        if not any(place.iterdir()):
            return True
        return (
            "tensors_of" in json.loads((place / "zarr.json").read_bytes())["attributes"]["anchor"]
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
