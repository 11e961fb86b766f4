"""Who made a run, as far as a collector that knows names told it.

It stands in the zarr.json of the run itself, which is made once, with the run's first rank, and
never rewritten: so whoever adds ranks to it, or records one anew, leaves it as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anchorlib.errors import StoreError
from anchorlib.names import escape
from anchorlib.store.metadata import group_json, stamp

__all__ = ["run_author", "run_document"]


def run_document(run: Path, author: str) -> bytes:
    """The zarr.json of a new run; `author` may be empty."""
    return group_json(stamp(run=run.stem, **({"author": author} if author else {})))


def run_author(run: Path) -> str | None:
    """Who made the run in this directory: "" where nobody was told, None where there is no run.

    Raises StoreError where what says so cannot be read.
    """
    try:
        document: Any = json.loads((run / "zarr.json").read_bytes())
        author = document["attributes"]["anchor"].get("author", "")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read who made {escape(str(run))}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        author = None
    if not isinstance(author, str):
        where = f"{escape(str(run))}/zarr.json"
        raise StoreError(f"{where} does not say who made the run: it is damaged")
    return author
