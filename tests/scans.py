"""The compiled scans of summaries: compiled once for all tests of a run, which takes seconds."""

from __future__ import annotations

import fcntl
import functools
import tempfile
from pathlib import Path

from anchorlib.summary import compiled
from anchorlib.summary.object_file import Compiling


@functools.cache
def loaded_scans() -> compiled.Scans:
    """The scans as a process has them that waited for the compiler."""
    kept = Path(tempfile.gettempdir()) / "kernels.o"  # of this run: see `tests.places`
    with kept.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not kept.stat().st_size:
            file.write(Compiling().code(wait=True))
    scans = compiled.Scans()
    scans._ready, scans.pieces = compiled._linked(kept.read_bytes())
    return scans
