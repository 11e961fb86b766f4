"""Checks whether a token may write to a run, or create one more.

A run notes the token that made it. Only that token, and tokens that have the right to replace runs,
may go on writing to the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from anchor_server.limits import Limits
from anchor_server.refusals import Refusal
from anchor_server.tokens import Grant, Right
from anchorlib.errors import StoreError
from anchorlib.store import note_of, run_author, run_directory
from anchorlib.wire import FailureKind

__all__ = ["check_author", "check_runs", "linked_run"]


def check_author(store: Path, grant: Grant, run: str, *, anew: bool) -> None:
    """Raises a Refusal where another token made the run and `grant` has no right to replace it.

    Some runs were made without a token: by a collector that had no access file, or by a trainer in
    the directory itself. Whoever has the right to write may continue such a run; to record it anew
    takes the right to replace. The right to replace is also needed to record anew a run whose files
    are in its archive alone.

    Where the run's folder is a link to another run of the store, the records go to that run: then
    a caller without the right to write that run too is refused.

    Raises StoreError where the note of who made the run is damaged or missing.

    grant: the caller's token with its rights; that it may write to `run` was checked before.
    anew: whether the run is to be recorded anew, which removes its records.
    """
    other = linked_run(store, run)
    if other is not None and not grant.may(Right.WRITE, other):
        raise Refusal(
            FailureKind.FORBIDDEN,
            f"run '{run}' is a link to a run that token '{grant.name}' has no right to write; who "
            "runs the collector can give it one",
        )
    run = run if other is None else other
    if grant.may(Right.REPLACE, run):
        return
    author = run_author(run_directory(store, run))
    if author is None and anew and note_of(store, run) is not None:
        raise Refusal(
            FailureKind.FORBIDDEN,
            f"run '{run}' is archived, and token '{grant.name}' has no right to replace: take "
            "another run name, or ask who runs the collector for that right",
        )
    if author is None or author == grant.name or (not author and not anew):
        return
    whose = "was made by another token" if author else "was made by no token"
    raise Refusal(
        FailureKind.FORBIDDEN,
        f"run '{run}' {whose}, and token '{grant.name}' has no right to replace: take another run "
        "name, or ask who runs the collector for that right",
    )


def linked_run(store: Path, run: str) -> str | None:
    """Returns the run that a run's folder is a symbolic link to.

    Returns None where the folder is no link, and where the link leads out of the store. Returns ""
    where the link leads to a folder of the store that is no run: as the name of a run, "" is
    covered only by a grant for all runs ("*").
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
    """Raises a Refusal where a new run `run` would exceed a limit on the number of runs (max_runs).

    For a run that exists already nothing is raised. Runs that other streams are creating at this
    moment count too.

    limits: the collector's limits, for the runs of all tokens together.
    grant: the caller's token, which may have a limit of its own on the runs that it has made.
    making: for each run that another stream is creating, the name of the token that creates it.
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
        FailureKind.RUNS,
        f"{who} {most} runs, which is the limit (max_runs): another run begins when one of them "
        "is removed (anchor rm)",
    )
