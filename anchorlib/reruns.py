"""Runs a training command again, with environment variables that change what the training computes.

`noise_runs` sets ANCHOR_PERTURB, which changes each parameter by about a rounding error;
`graft_runs` sets ANCHOR_GRAFT, which makes anchors (marked tensors of the training) return the
values of another run. The command need not be edited: other variables make the session that it
opens record under a name made of the reference run's, such as RUN-noise1 or RUN-graft. So the
reference run RUN is left as it is, while an earlier noise or graft run of the same name is
replaced.
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
    """Return the store that holds `run`: a directory, or the URL of a collector or archive.

    run: a path or a URL, which says its store; or a name, whose store is `store`, else the value of
        ANCHOR_STORE, else "anchors". Whether the run exists is not checked.
    """
    if "://" in run:
        return run.rstrip("/").rpartition("/")[0]
    if os.sep in run or run.endswith(".zarr"):
        return str(Path(run).resolve().parent)
    return os.fspath(store) if store is not None else os.environ.get("ANCHOR_STORE") or "anchors"


def rerun(words: Sequence[str], variables: Mapping[str, str], output: Any) -> None:
    """Run a command with `variables` added to its environment, and wait until it has ended.

    words: the command and its arguments. variables: values by name.
    output: where the command's standard output goes, as `stdout` of `subprocess.run`.
    Raises CommandError if the command cannot be started, or ends with an exit code other than 0.
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
    """Return the header of the run `name` in `store`; None if the run cannot be opened."""
    try:
        return dict(open_run(name, store).header())
    except AnchorError:
        return None


def made_run(
    name: str, store: str, header: Mapping[str, str], previous: Mapping[str, Any] | None
) -> str:
    """Check that a rerun has just recorded a run called `name` in `store`; return `name`.

    header: entries that the run's header must have, as the rerun writes them.
    previous: the header of the run of that name before the command ran; None if there was none.
    Raises CommandError if there is no such run, if its header is still `previous`, or if its header
    lacks an entry of `header`.
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
