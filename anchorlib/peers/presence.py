"""Finds ranks that a job had but that recorded nothing, and ranks that ended before the others."""

from __future__ import annotations

from anchorlib.peers.grid import RankGrid
from anchorlib.peers.outlier import Early
from anchorlib.reading import Run

__all__ = ["ended_early", "missing_ranks"]

WORLD = "env.WORLD_SIZE"
MOST = 1 << 20  # ranks: a larger world size in a header belongs to no job


def missing_ranks(run: Run, ranks: list[int]) -> tuple[int, ...]:
    """Return the ranks of the job that have no record.

    The job has the ranks below the world size that the run's header states, and those below the
    highest in `ranks`. Ranks that a run was told not to record (`ranks=`, ANCHOR_RANKS) count as
    missing too. The result is empty where no rank has records.

    ranks: the ranks that have records, ascending.
    """
    if not ranks:
        return ()
    stated = str(run.header().get(WORLD, ""))
    world = int(stated) if stated.isdecimal() and len(stated) < 8 else 0
    among = set(ranks)
    whole = range(max(min(world, MOST), min(ranks[-1] + 1, MOST)))
    return tuple(rank for rank in whole if rank not in among)


def ended_early(grid: RankGrid) -> tuple[Early, ...]:
    """Return the ranks whose last step comes before the last step of the run.

    In a run that is still being recorded, ranks are a step apart now and then: a rank that is
    behind is returned even then.
    """
    end = max(grid.last, default=-1)
    return tuple(
        Early(rank, step, end)
        for rank, step in zip(grid.ranks, grid.last, strict=True)
        if step < end
    )
