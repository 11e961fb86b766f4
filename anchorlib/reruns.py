"""Runs a training command again, with variables in its environment that change the recording.

The session that the command opens takes its name and store from the variables. So the command need
not be edited, and no earlier run is changed. `noise_runs` and `graft_runs` use this.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anchorlib.errors import AnchorError, CommandError
from anchorlib.names import escape
from anchorlib.reading import open_run

__all__ = ["header_of", "made_run", "rerun", "store_of"]


def store_of(run: str, store: str | Path | None) -> str:
    """The store that holds `run`, which may be a name in `store`, a path or a URL.

    Without `store`, a name is looked for where ANCHOR_STORE says, else in "anchors".
    """
    if "://" in run:
        return run.rstrip("/").rpartition("/")[0]
    if os.sep in run or run.endswith(".zarr"):
        return str(Path(run).resolve().parent)
    return os.fspath(store) if store is not None else os.environ.get("ANCHOR_STORE") or "anchors"


def rerun(words: Sequence[str], variables: Mapping[str, str], output: Any) -> None:
    """Run a command with `variables` in its environment, and wait for it.

    output: where the command's standard output goes, as for `subprocess.run`.
    Raises CommandError where the command cannot be run, or fails.
    """
    shown = escape(shlex.join(words))
    try:
        done = subprocess.run(words, env={**os.environ, **variables}, stdout=output, check=False)
    except OSError as fault:
        reason = fault.strerror or type(fault).__name__
        raise CommandError(f"`{shown}` cannot be run: {reason}") from fault
    if done.returncode:
        ended = f"exit code {done.returncode}" if done.returncode > 0 else "a signal"
        under = " ".join(
            f"{name}={escape(value)}" for name, value in variables.items() if name not in _PLACE
        )
        raise CommandError(f"`{shown}` ended with {ended} under {under}")


# The variables that say where a rerun records. They explain no failure, so errors leave them out.
_PLACE = ("ANCHOR_RUN", "ANCHOR_STORE")


def header_of(name: str, store: str) -> Mapping[str, Any] | None:
    """The header of a run; None where the run cannot be opened."""
    try:
        return dict(open_run(name, store).header())
    except AnchorError:
        return None


def made_run(
    name: str, store: str, header: Mapping[str, str], previous: Mapping[str, Any] | None
) -> str:
    """Check that a rerun has just recorded a run called `name`; return the name.

    header: entries that the rerun writes into the run's header.
    previous: the header of the run of that name before the command ran; None if there was none.
    Raises CommandError where there is no such run, or only the previous one.
    """
    recorded = header_of(name, store)
    if (
        recorded is not None
        and recorded != previous
        and all(recorded.get(key) == value for key, value in header.items())
    ):
        return name
    reason = f"no such run is in {escape(store)}"
    if recorded is not None:
        reason = f"{name} in {escape(store)} is an older run"
    raise CommandError(
        f"the command ran, but recorded no {name}: {reason}; does it name another run or store? A "
        "program that starts no session needs `anchor run --` before it"
    )
