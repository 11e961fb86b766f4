"""What an exit code of `anchor` means; scripts rely on the numbers."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """The numbers of the contract, and one more for a defect of our own."""

    DONE = 0
    DIFFERENCE = 1  # an unexpected difference, or damage found
    USAGE = 2  # wrong input: unknown run, tensor, mode, option; a place that is no store
    INCOMPLETE = 3  # answered, but what the answer rests on has gaps
    COLLECTOR = 4  # the collector, or a dask cluster, could not be reached, or refused
    DEFECT = 70  # sysexits.h EX_SOFTWARE: a fault in anchorlib itself
    INTERRUPTED = 130
