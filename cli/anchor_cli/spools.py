"""Names spools of this machine that wait for a run which was removed or renamed."""

from __future__ import annotations

import shlex

from anchor_cli.terminal import note
from anchorlib.names import escape

__all__ = ["note_spools"]


def note_spools(run: str, name: str | None = None) -> None:
    """Shows each spool of `run`, and the command that delivers it; `name`: the run's new name."""
    from anchorlib.spool import spools_here

    for spool in spools_here():
        if spool.run == run:
            path, to = (escape(shlex.quote(str(one))) for one in (spool.path, spool.to))
            rest = f"anchor push {path} --to {to} --as {name or 'NAME'}"
            note(f"a spool on this machine still waits for run {run} (rank {spool.rank}): {rest}")
