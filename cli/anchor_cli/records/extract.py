"""The records of one tensor that `anchor pull` writes, as arrays for any file format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.errors import RaggedError

if TYPE_CHECKING:
    from anchorlib.record import Record

__all__ = ["PLACE", "Extract"]

Array = np.ndarray[Any, Any]

PLACE = ("step", "pass_index", "call", "rank", "phase", "count", "attempt")
"""The columns that every file format but .npy holds for a record, beside its values."""


@dataclass(frozen=True)
class Extract:
    """The records of one tensor and kind that are to be written to a file, in their order."""

    name: str
    kind: str
    records: Sequence[Record]

    @cached_property
    def place(self) -> dict[str, Array]:
        """The coordinates of the records: an array for each column of PLACE, keyed by its name.

        The columns are step, pass_index, call, rank, phase, count and attempt; each has an entry
        for each record. `phase` is an array of text, the other columns are int64.
        """
        columns = zip(*map(_place, self.records), strict=True)
        # Each column has memory of its own: safetensors refuses tensors that share memory.
        return {
            name: np.array(values, np.str_ if name == "phase" else np.int64)
            for name, values in zip(PLACE, columns, strict=True)
        }

    @property
    def numbers(self) -> dict[str, Array]:
        """The arrays of `place` without `phase`, for file formats that hold no text."""
        return {name: values for name, values in self.place.items() if name != "phase"}

    @property
    def dtypes(self) -> list[str]:
        """The element types of the records, by torch's names, each once; mostly one."""
        return list(dict.fromkeys(record.dtype for record in self.records))

    @property
    def ragged(self) -> bool:
        """Whether the records differ in shape or dtype, so that they cannot be one array."""
        return len({(record.shape, record.dtype) for record in self.records}) > 1

    def stacked(self, *, raw: bool = False) -> Array:
        """Returns all values as one array of shape (record, *tensor shape).

        Without `raw` the numbers are decoded (bfloat16 to float32). Raises RaggedError where the
        records differ in shape or dtype, ValuesNotKeptError where a record has only a summary.

        raw: whether to return the numbers as they are stored (bfloat16 as uint16).
        """
        if self.ragged:
            raise RaggedError(
                f"the records of {self.name}@{self.kind} differ in shape or dtype and cannot be "
                "one array; narrow them with --step, or write .npz, .pt, .safetensors, .parquet "
                "or .csv"
            )
        return np.stack(list(self._arrays(raw)))

    def named(self, *, raw: bool = False) -> dict[str, Array]:
        """Returns the values as arrays, keyed by the names that they get in a file.

        The only name is `value`, for the array that `stacked` returns. Where the records differ in
        shape or dtype, each record has an array of its own instead: `value_0`, `value_1` and so on.
        Raises ValuesNotKeptError where a record has only a summary.

        raw: as in `stacked`.
        """
        if not self.ragged:
            return {"value": self.stacked(raw=raw)}
        return {f"value_{i}": array for i, array in enumerate(self._arrays(raw))}

    def _arrays(self, raw: bool) -> Iterator[Array]:  # noqa: FBT001  # private
        for record in self.records:
            array = record.array  # raises ValuesNotKeptError for a summary without values
            yield record.raw if raw and record.raw is not None else array


def _place(record: Record) -> tuple[int | str, ...]:
    at = record.coordinates
    return (at.step, at.pass_index, at.call, record.rank, at.phase, record.count, at.attempt)
