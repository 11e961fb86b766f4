"""The upkeep of whole runs: seeing who writes them; measuring, removing, renaming, mending them.

A keeper is the object that does this for the runs of one store, a directory or a collector.

keeper              the interface of a keeper
store_keepers       the keepers of a directory and of a collector
several_collectors  the keeper of runs that several collectors hold together
choosing            which runs to remove, by age, number and size
live_writers        which processes write runs now
archives            which closed runs are archived, wait to be, or cannot be
mending             the undamaged rows of a damaged run, copied into a new run

    keeper_of(find_run("run1")) ─▶ keeper, "run1" ─▶ keeper.remove("run1")
"""

from __future__ import annotations

from anchorlib.upkeep.archives import ArchiveState
from anchorlib.upkeep.choosing import RetentionLimits, RunFacts, chosen
from anchorlib.upkeep.keeper import Keeper, RemovalStatus
from anchorlib.upkeep.live_writers import Writing
from anchorlib.upkeep.mending import Examined, salvage
from anchorlib.upkeep.several_collectors import PartlyChangedError
from anchorlib.upkeep.store_keepers import (
    keeper_at,
    keeper_of,
    keepers_at,
    local_run,
    read_facts,
)

__all__ = [
    "ArchiveState",
    "Examined",
    "Keeper",
    "PartlyChangedError",
    "RemovalStatus",
    "RetentionLimits",
    "RunFacts",
    "Writing",
    "chosen",
    "keeper_at",
    "keeper_of",
    "keepers_at",
    "local_run",
    "read_facts",
    "salvage",
]
