"""Graft runs: a training command is run, and its anchors return the values of another run.

The command finds ANCHOR_GRAFT=RUN in its environment, and the session that it opens records the run
RUN-graft (see `anchorlib.capture.eager.grafting`). Each tensor of RUN-graft is computed from RUN's
values. So where the two runs differ, the command itself computes that tensor differently: an
earlier difference does not carry on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorlib.names import graft_name
from anchorlib.reading import open_run
from anchorlib.reruns import header_of, made_run, rerun, store_of

__all__ = ["graft_run"]


def graft_run(
    command: Sequence[str], run: str, store: str | Path | None = None, *, output: Any = None
) -> tuple[str, str]:
    """Run `command` with anchors that return the values of `run`, and wait for its end.

    The command records the run RUN-graft into the store of `run`, which it finds in ANCHOR_STORE.
    An earlier run of that name is replaced.

    command: the words of a command line, as for `subprocess.run`.
    run: RUN: a name in `store`, a path or a URL, as for `open_run`; the run is not changed.
    store: the store in which `run` is a name; None means ANCHOR_STORE, else "anchors".
    output: where the command's standard output goes, as for `subprocess.run`.

    Returns (name of the new run, its store).

    Raises RunNotFoundError where there is no run `run`, and CommandError where the command fails or
    does not record RUN-graft.
    """
    reference, place = open_run(run, store), store_of(run, store)
    name = graft_name(reference.name)
    previous = header_of(name, place)
    variables = {
        "ANCHOR_RUN": reference.name,
        "ANCHOR_STORE": place,
        "ANCHOR_GRAFT": os.fspath(run) if os.sep in run else reference.name,
    }
    rerun(list(command), variables, output)
    return made_run(name, place, {"grafted": reference.name}, previous), place
