"""The compiled scans of summaries: compiled once for all tests of a run, which takes seconds."""

from __future__ import annotations

import functools

from anchorlib.summary import compiled
from anchorlib.summary.object_file import Compiling
from tests.between_workers import made_once


@functools.cache
def loaded_scans() -> compiled.Scans:
    """The scans as a process has them that waited for the compiler."""
    code = made_once("kernels.o", lambda: Compiling(awaited=True).code(wait=True))
    scans = compiled.Scans()
    scans._ready, scans.pieces = compiled._linked(code)
    return scans
