"""The author of a run: the name under which its first writer was known to the collector.

The author is stated in the zarr.json of the run, which is made once, with the run's first rank.
Later writers, which add ranks or record a rank anew, leave it as it is. Renaming or repairing the
run writes the zarr.json again, with the author that it stated before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.format import group_json, rank_of, stamp

__all__ = ["document_again", "run_author", "run_document"]


def run_document(run: Path, author: str) -> bytes:
    """Return the zarr.json of a new run in directory `run`; "" as `author` is left out of it."""
    return group_json(stamp(run=run.stem, **({"author": author} if author else {})))


def document_again(run: Path) -> bytes:
    """Return the zarr.json that the run in directory `run` should have.

    It states the author that the present zarr.json states, or none if that cannot be read.
    """
    try:
        return run_document(run, run_author(run) or "")
    except StoreError:
        return run_document(run, "")


def run_author(run: Path) -> str | None:
    """Return the author of the run in this directory; "" for none, None where there is no run.

    Raises StoreError where the run's zarr.json is damaged or cannot be read, or is missing although
    there are ranks.
    """
    try:
        document: Any = json.loads((run / "zarr.json").read_bytes())
        author = document["attributes"]["anchor"].get("author", "")
    except (FileNotFoundError, NotADirectoryError):
        if not _has_ranks(run):
            return None
        author = None
    except OSError as error:
        raise StoreError(f"cannot read who made {escape(str(run))}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        author = None
    if not isinstance(author, str):
        where = f"{escape(str(run))}/zarr.json"
        raise StoreError(f"{where} does not say who made the run: it is damaged")
    return author


def _has_ranks(run: Path) -> bool:
    try:
        return any(rank_of(path.name) is not None for path in run.iterdir())
    except OSError:
        return False
