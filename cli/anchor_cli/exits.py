"""The exit codes of `anchor`; scripts rely on the numbers, so they never change."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """The exit codes of all commands; what each means to a command is in that command's help."""

    DONE = 0
    DIFFERENCE = 1  # an unexpected difference, or damage found
    USAGE = 2  # wrong input: unknown run, tensor, mode, option; a place that is no store
    INCOMPLETE = 3  # an answer was given, but records that it needs are missing
    COLLECTOR = 4  # the collector, or a dask cluster, could not be reached, or refused
    DEFECT = 70  # sysexits.h EX_SOFTWARE: a fault in anchorlib itself
    INTERRUPTED = 130
