"""The records of one tensor that a command's options have selected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorlib.names import escape, join

if TYPE_CHECKING:
    from anchorlib import Series, TensorInfo

__all__ = ["SelectedRecords"]


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """The selected records of one tensor, kind and mode.

    series: for each rank with selected records, a series of these records.
    whole: for each rank (with --rank: for that rank alone), a series of all records of the tensor,
        whether or not they are selected. Records of an earlier attempt that were recorded again
        after a resume are among them.
    """

    info: TensorInfo
    series: tuple[Series, ...]
    whole: tuple[Series, ...]

    @property
    def title(self) -> str:
        """The tensor's name and kind, as "fc1@grad", escaped for a terminal."""
        return escape(join(self.info.name, self.info.kind))

    @property
    def records(self) -> int:
        """How many records were selected."""
        return sum(map(len, self.series))

    @property
    def first_step(self) -> int:
        """The first step with a selected record."""
        return min(int(one.columns["step"].min()) for one in self.series)

    @property
    def last_step(self) -> int:
        """The last step with a selected record."""
        return max(int(one.columns["step"].max()) for one in self.series)

    @property
    def scales(self) -> list[float]:
        """The loss scales of the selected records, ascending; 1.0 stands for no loss scale."""
        return sorted({scale for one in self.series for scale in one.columns["scale"].tolist()})
