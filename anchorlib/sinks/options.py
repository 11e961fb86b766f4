"""What a sink is told of the rank that it records, in one value from `start` to the store."""

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

    header: JSON-able, stored with the attempt.
    resume, overwrite: what to do where the rank exists already.
    on_full: when what waits reaches its limit. "drop" leaves values out and keeps their summaries,
        and counts what does not even leave room for those; otherwise training waits.
    queue_bytes: of records that wait in memory.
    max_bytes: of values that this rank may take on disk; None leaves a part of the disk free.
    durability: whether what was taken survives the end of the process, or of power.
    restart: how often the job was restarted, as its launcher counts; None where it does not.
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
        """Whether what was taken survives power loss."""
        return self.durability == "power"
