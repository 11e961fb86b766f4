"""Whose a run is: of the token that made it, and of whoever may write into the runs of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from anchor_server.access import Grant, Right
from anchor_server.limits import Limits
from anchor_server.refusals import Refusal
from anchorlib.errors import StoreError
from anchorlib.store import note_of, run_author, run_directory
from anchorlib.wire import Kind

__all__ = ["check_author", "check_runs", "linked_run"]


def check_author(store: Path, grant: Grant, run: str, *, anew: bool) -> None:
    """Raises a Refusal where the run is another's, whom `grant` may not write for.

    anew: records that are there would be removed. A run that no token made (by a collector without
    an access file, by a trainer in the directory itself) is continued by whoever may write it, and
    recorded anew by whoever may replace what others made.

    Of a link to another run of the store, that run is touched: it needs the right to write it too.

    Raises StoreError where nothing says any more who made the run.
    """
    other = linked_run(store, run)
    if other is not None and not grant.may(Right.WRITE, other):
        raise Refusal(
            Kind.FORBIDDEN,
            f"run '{run}' is a link to a run that token '{grant.name}' has no right to write; who "
            "runs the collector can give it one",
        )
    run = run if other is None else other
    if grant.may(Right.REPLACE, run):
        return
    author = run_author(run_directory(store, run))
    if author is None and anew and note_of(store, run) is not None:
        raise Refusal(
            Kind.FORBIDDEN,
            f"run '{run}' is archived, and token '{grant.name}' has no right to replace: take "
            "another run name, or ask who runs the collector for that right",
        )
    if author is None or author == grant.name or (not author and not anew):
        return
    whose = "was made by another token" if author else "was made by no token"
    raise Refusal(
        Kind.FORBIDDEN,
        f"run '{run}' {whose}, and token '{grant.name}' has no right to replace: take another run "
        "name, or ask who runs the collector for that right",
    )


def linked_run(store: Path, run: str) -> str | None:
    """The other run of the store that a link with a run's name leads to; None where it does not.

    "" where what it leads to is in the store and no run's folder: only those who may all have it.
    """
    folder = run_directory(store, run)
    if not folder.is_symlink():
        return None
    root, real = Path(os.path.realpath(store)), Path(os.path.realpath(folder))
    if not real.is_relative_to(root):
        return None
    inside = real.relative_to(root).parts
    return real.stem if len(inside) == 1 and real.suffix == folder.suffix else ""


def check_runs(
    store: Path, run: str, limits: Limits, grant: Grant, making: Mapping[str, str]
) -> None:
    """Raises a Refusal where `run` would be one run too many: of the store, or of its maker.

    making: the names of runs that others are making at this moment, with their makers'.
    """
    if limits.runs is None and grant.limits.runs is None:
        return
    if (run_directory(store, run) / "zarr.json").exists():
        return
    there = [
        path
        for path in store.glob("*.zarr")
        if (path / "zarr.json").exists() and path.stem not in making
    ]
    if limits.runs is not None and len(there) + len(making) >= limits.runs:
        raise _too_many("this collector has", limits.runs)
    most = grant.limits.runs
    own = [maker for maker in making.values() if maker == grant.name]
    if most is not None and sum(_made(path, grant.name) for path in there) + len(own) >= most:
        raise _too_many(f"token '{grant.name}' has", most)


def _made(run: Path, name: str) -> bool:
    try:
        return run_author(run) == name
    except StoreError:
        return False


def _too_many(who: str, most: int) -> Refusal:
    return Refusal(
        Kind.RUNS,
        f"{who} {most} runs, which is the limit (max_runs): another begins when one is removed",
    )
