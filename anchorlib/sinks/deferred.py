"""Records that are still to be made: what waits in the queue.

Everything costly about a record (its summary, its digest) is made on the drain thread, for many
records at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from anchorlib.record import Flag, Record
from anchorlib.sinks.admission import Admission
from anchorlib.summary import Summary, summarise_all

__all__ = ["Deferred", "WithoutValues", "records_of"]


class Deferred(Protocol):
    """A record that is still to be made."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def kind(self) -> str:
        """The tensor's kind."""

    @property
    def mode(self) -> str:
        """The mode's canonical text."""

    @property
    def step(self) -> int:
        """The step it was observed in."""

    @property
    def nbytes(self) -> int:
        """What it holds in memory while it waits."""

    @property
    def keeps(self) -> bool:
        """Whether its mode keeps values, not the summary alone."""

    def storage(self) -> tuple[np.ndarray[Any, Any], str]:
        """Its raw storage and dtype."""

    def record(self, summary: Summary | None = None) -> Record:
        """The finished record. `summary` is that of its storage; None: it makes its own."""

    def release(self) -> None:
        """The record has been put: its memory may be used again."""


class WithoutValues:
    """A deferred record whose values are left out once its summary is made."""

    __slots__ = ("_whole", "keeps", "kind", "mode", "name", "nbytes", "step")

    def __init__(self, whole: Deferred) -> None:
        self._whole = whole
        self.name, self.kind, self.mode = whole.name, whole.kind, whole.mode
        self.step, self.nbytes, self.keeps = whole.step, whole.nbytes, whole.keeps

    def storage(self) -> tuple[np.ndarray[Any, Any], str]:
        """The values that the summary is made of."""
        return self._whole.storage()

    def record(self, summary: Summary | None = None) -> Record:
        """The finished record without its values; it says that they were dropped."""
        record = self._whole.record(summary)
        if not self.keeps:  # nothing is lost
            return record
        return replace(record, raw=None, flags=record.flags | Flag.VALUE_DROPPED)

    def release(self) -> None:
        """The record has been put: its memory may be used again."""
        self._whole.release()


def records_of(batch: Sequence[Deferred], admission: Admission) -> Iterator[Record | Exception]:
    """The finished records of a batch, in order; in place of one that failed, what it raised."""
    for item, summary in zip(batch, _summaries(batch), strict=True):
        try:
            yield admission.check(item.record(summary))
        except Exception as fault:  # noqa: BLE001  # one bad record must not cost the others
            yield fault


def _summaries(batch: Sequence[Deferred]) -> Sequence[Summary | None]:
    """The summary of each item's storage; None where each is to make its own."""
    try:
        return summarise_all([item.storage() for item in batch])
    except Exception:  # noqa: BLE001  # one that is bad must not cost the others
        return [None] * len(batch)
