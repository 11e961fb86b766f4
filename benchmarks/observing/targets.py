"""The tables' headings, rows and columns, and what each figure should be at most."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio

__all__ = [
    "BESIDE_EMPTY",
    "BESIDE_SAVED",
    "BOTH",
    "COPIES",
    "INODES",
    "PLAIN",
    "RECORDS",
    "SESSIONS",
    "STEP_CLOCKS",
    "TARGETS",
    "THREAD",
    "TRAINER",
    "cell",
]

PLAIN = "A step, observed / unobserved"
BESIDE_EMPTY = "A step, observed / with empty hooks at the same places"
BESIDE_SAVED = "A step, observed / with hooks that torch.save the same tensors, a file each"
RECORDS = "A record"
COPIES = "A large value / a memcpy into memory that is warm"
SESSIONS = "A run of ten small records"
INODES = "Files and directories"

WALL, FLUSHED = "wall", "wall with flush"
THREAD, TRAINER, BOTH = "training thread", "CPU of the trainer", "CPU with the recorder"
STEP_CLOCKS = {"wall": WALL, "flushed": FLUSHED, "trainer": TRAINER, "both": BOTH}

# A row, whatever is told about it behind a colon, in a table, in a column.
TARGETS: dict[tuple[str, str, str], float] = {
    (PLAIN, "tiny, default selection", TRAINER): 1.9,
    (BESIDE_EMPTY, "tiny, default selection", TRAINER): 1.4,
    (PLAIN, 'tiny, "*"', TRAINER): 3.2,
    (PLAIN, "tf, default selection", WALL): 1.3,
    (PLAIN, "tf, default selection", TRAINER): 1.3,
    (PLAIN, 'tf, "*"', TRAINER): 1.7,
    (PLAIN, 'tf, "*", Summary', TRAINER): 1.5,
    (PLAIN, "mlp, default selection", TRAINER): 1.45,
    (PLAIN, "unet, default selection", WALL): 1.6,
    (PLAIN, "unet, default selection", TRAINER): 1.5,
    **{(BESIDE_SAVED, "unet, default selection", name): 1.0 for name in STEP_CLOCKS.values()},
    (PLAIN, "wide, EveryN, not selected", TRAINER): 1.01,
    (RECORDS, "8x8 value", THREAD): 2.7,
    (RECORDS, "8x8 value", TRAINER): 3.5,
    (RECORDS, "8x8 value", BOTH): 8,
    (RECORDS, "8x8 value, remote", TRAINER): 4,
    (RECORDS, "first record of a new series", BOTH): 30,
    (RECORDS, "10,000 series, a record a flush", BOTH): 10,
    **{(COPIES, size, THREAD): 1.1 for size in ("64 KiB", "256 KiB", "1 MiB", "4 MiB")},
    **{
        (SESSIONS, f"{which} of a process", column): most
        for which in ("first", "later")
        for column, most in (("start, CPU of the trainer", 60), ("close, wall", 300))
    },
    (INODES, "10,000 tensors, 2 steps", "inodes"): 1_000,
    (INODES, "unet, default selection, 5 steps", "inodes"): 400,
}


WHY = {
    (COPIES, "64 KiB", THREAD): "what is not the copy, 2 to 3 µs, takes as long as the copy itself",
}


def cell(heading: str, row: str, column: str, found: Ratio, unit: str = "x") -> Figure:
    """A figure with its target; behind a colon `row` may tell more than its name."""
    place = (heading, row.partition(":")[0], column)
    one = figure(row, found, unit, at_most=TARGETS.get(place), why=WHY.get(place, ""))
    return replace(one, heading=heading, column=column)
