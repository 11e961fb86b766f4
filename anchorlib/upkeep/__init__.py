"""The upkeep of whole runs: seeing who writes them; measuring, removing, renaming, mending them.

keeper              the keeper of a store: of a directory, or of a collector
several_collectors  the keeper of runs that several collectors hold together
choosing            which runs to remove, by age, number and size
live_writers        which processes write runs now
archives            what became of closed runs: archived, waiting, or failing
mending             the sound rows of a damaged run, recorded once more

    keeper_of(find_run("run1")) ─▶ keeper, "run1" ─▶ keeper.remove("run1")
"""

from __future__ import annotations

from anchorlib.upkeep.archives import ArchiveState
from anchorlib.upkeep.choosing import Limits, RunFacts, chosen
from anchorlib.upkeep.keeper import (
    Keeper,
    keeper_at,
    keeper_of,
    keepers_at,
    local_run,
    read_facts,
)
from anchorlib.upkeep.live_writers import Writing
from anchorlib.upkeep.mending import Examined, salvage
from anchorlib.upkeep.several_collectors import PartlyChangedError

__all__ = [
    "ArchiveState",
    "Examined",
    "Keeper",
    "Limits",
    "PartlyChangedError",
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
