"""Warns of spools that still hold records of a run which was removed or renamed.

A spool is a queue on the trainer's disk of records that no collector has confirmed yet.
"""

from __future__ import annotations

import shlex

from anchor_cli.terminal import note
from anchorlib.names import escape

__all__ = ["note_spools"]


def note_spools(run: str, name: str | None = None) -> None:
    """Prints on stderr each spool of a run on this machine, and the command that delivers it.

    run: the run's name in the spool; of a renamed run, the old name.
    name: the run's new name; None where the run was removed.
    """
    from anchorlib.spool import spools_here

    for spool in spools_here():
        if spool.run == run:
            path, to = (escape(shlex.quote(str(one))) for one in (spool.path, spool.to))
            rest = f"anchor push {path} --to {to} --as {name or 'NAME'}"
            note(f"a spool on this machine still waits for run {run} (rank {spool.rank}): {rest}")
