"""`RunOptions`: how one rank of a run is recorded, as passed from `anchorlib.start` to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from anchorlib.sinks.base import OnFull

__all__ = ["QUEUE_BYTES", "Durability", "RunOptions"]

QUEUE_BYTES: Final = 256 * 2**20

Durability: TypeAlias = Literal["process", "power"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One rank of one run, and how its records are kept.

    header: entries of the run header; they must be values that JSON can hold.

    resume: whether to go on with the rank if it is stored already. overwrite: whether to replace
        it. Without either, a stored rank is an error.

    on_full: what to do when waiting records reach their limit. "block" makes training wait. "drop"
        leaves values out and keeps the summaries; records whose summaries have no room either are
        lost, and counted. "raise" does the same where the queue in memory is full, and makes the
        next step raise; where a collector's spool is full, it makes training wait.

    queue_bytes: the most bytes of records that wait in memory.

    max_bytes: the most bytes of values that this rank may take on disk; None: all of the disk,
        except a part that is left free.

    durability: what records that the sink has accepted survive: "process", the end of the process;
        "power", a power loss of the machine as well.

    restart: how often the launcher restarted the job; None where the launcher does not say.
    """

    run: str
    rank: int
    header: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    overwrite: bool = False
    on_full: OnFull = "drop"
    queue_bytes: int = QUEUE_BYTES
    max_bytes: int | None = None
    durability: Durability = "process"
    restart: int | None = None

    @property
    def power(self) -> bool:
        """Whether records that the sink has accepted survive a power loss of the machine."""
        return self.durability == "power"
