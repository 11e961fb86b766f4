"""Whose a run is: of the token that made it, and of whoever may write into the runs of others."""

from __future__ import annotations

from pathlib import Path

from anchor_server.access import Grant, Right
from anchor_server.refusals import Refusal
from anchorlib.store import run_author, run_directory
from anchorlib.wire import Kind

__all__ = ["check_author"]


def check_author(store: Path, grant: Grant, run: str, *, anew: bool) -> None:
    """Raises a Refusal where the run is another's, whom `grant` may not write for.

    anew: records that are there would be removed. A run that no token made (by a collector without
    an access file, by a trainer in the directory itself) is continued by whoever may write it, and
    recorded anew by whoever may replace what others made.

    Raises StoreError where nothing says any more who made the run.
    """
    if grant.may(Right.REPLACE, run):
        return
    author = run_author(run_directory(store, run))
    if author is None or author == grant.name or (not author and not anew):
        return
    whose = "was made by another token" if author else "was made by no token"
    raise Refusal(
        Kind.FORBIDDEN,
        f"run '{run}' {whose}, and token '{grant.name}' has no right to replace: take another run "
        "name, or ask who runs the collector for that right",
    )
