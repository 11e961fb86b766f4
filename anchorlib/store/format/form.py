"""A form: what records of one dtype and shape have in common, and where their values lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from anchorlib import dtypes
from anchorlib.store.format.checks import seed_of
from anchorlib.store.format.fields import items, whole
from anchorlib.store.format.layout import (
    CHUNK_BYTES,
    LABELS,
    ROWS_PER_CHUNK,
    flat_name,
    form_name,
    rows_per_chunk,
)

__all__ = ["MOST_DIMS", "Form", "new_form", "shape_of"]

MOST_DIMS: Final = 64  # numpy's own limit
_MOST_ELEMENTS: Final = 1 << 58  # their bytes fit into 64 bits, whatever the dtype
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Form:
    """A form as the catalogue knows it.

    shape: None for a flat form, whose records have shapes of their own, in `ndim` numbers each
        (those behind a shape's end are -1).
    group: where its arrays are, below the rank. array: the name of that of the values; None as long
        as no values were kept.
    rows: records (or elements, where it is flat) that a chunk of that array holds.
    starts, shapes: the arrays that say where a record of a flat form begins, and its shape.
    labels: for each column that stands beside the values, the array it stands in.
    """

    id: int
    dtype: str
    shape: tuple[int, ...] | None
    ndim: int
    group: str
    array: str | None = None
    rows: int = 1
    starts: str = "start"
    shapes: str = "shape"
    labels: tuple[tuple[str, str], ...] = tuple((name, name) for name in LABELS)
    label_rows: int = ROWS_PER_CHUNK

    @property
    def flat(self) -> bool:
        """Whether its records have shapes of their own."""
        return self.shape is None

    @property
    def seed(self) -> int:
        """Its half of the seed of its rows' checksums."""
        return seed_of(self.dtype, self.shape, self.ndim)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of one record, or of one element where the form is flat."""
        return dtypes.dtype(self.dtype).storage.itemsize * prod(self.shape or ())

    def begun(self) -> Form:
        """The form once it keeps values: with the name of their array, and what a chunk holds."""
        rows = CHUNK_BYTES // self.nbytes if self.flat else rows_per_chunk(self.nbytes)
        return replace(self, array="value", rows=rows)


def new_form(number: int, dtype: str, shape: tuple[int, ...] | int) -> Form:
    """A form of one shape, or of shapes of up to so many dimensions; it keeps no values yet."""
    if isinstance(shape, int):
        return Form(number, dtype, None, shape, f"forms/{flat_name(dtype, shape)}")
    return Form(number, dtype, shape, len(shape), f"forms/{form_name(dtype, shape)}")


def shape_of(told: Any) -> tuple[int, ...]:
    """The shape that a catalogue line says; ValueError where no array has such a shape."""
    shape = tuple(whole(size, most=_MOST) for size in items(told))
    if len(shape) > MOST_DIMS or prod(shape) > _MOST_ELEMENTS:
        raise ValueError("no array has such a shape")
    return shape
