"""The records of one rank that go into one line of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorlib.reading import Series
from anchorlib.record import TensorInfo

__all__ = ["LineRecords"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class LineRecords:
    """The records of one rank that go into one line (name, kind, mode, phase) of the page.

    info: what is known of the name, kind and mode in all ranks and phases.
    columns: the columns of `series` that the page uses, by name: arrays with an entry for each
    record. numel: how many elements each record has.
    """

    info: TensorInfo
    phase: str
    rank: int
    series: Series
    columns: dict[str, Array]
    numel: Array

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key of the line of the page that these records go into: name, kind, mode, phase."""
        return (self.info.name, self.info.kind, self.info.mode, self.phase)
