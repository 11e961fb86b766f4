"""A form: what records of one dtype and shape have in common, and where their values lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from anchorlib import dtypes
from anchorlib.store.format.checks import seed_of
from anchorlib.store.format.chunk_sizes import ROWS_PER_CHUNK, elements_per_chunk, rows_per_chunk
from anchorlib.store.format.fields import items, whole
from anchorlib.store.format.layout import LABELS, flat_name, form_name

__all__ = ["MOST_DIMS", "Form", "new_form", "shape_of"]

MOST_DIMS: Final = 64  # numpy's own limit
_MOST_ELEMENTS: Final = 1 << 58  # so that their bytes fit into 64 bits, whatever the dtype
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Form:
    """A form as the catalogue knows it.

    shape: the shape of its records; None for a flat form, whose records each have a shape of their
        own, stored as `ndim` numbers (-1 behind the end of a shape).
    group: the group of its arrays, below the rank.
    array: the name of the array of its values; None as long as no values were kept.
    rows: how many records (elements, where the form is flat) a chunk of that array holds.
    starts, shapes: the arrays that say where a record of a flat form begins, and its shape.
    labels: the columns that are repeated beside the values, each with the array it stands in.
    label_rows: how many records a chunk of such an array holds.
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
        """Whether each record has a shape of its own."""
        return self.shape is None

    @property
    def seed(self) -> int:
        """The form's half of the seed of its rows' checksums."""
        return seed_of(self.dtype, self.shape, self.ndim)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of one record, or of one element where the form is flat."""
        return dtypes.dtype(self.dtype).storage.itemsize * prod(self.shape or ())

    def begun(self) -> Form:
        """The form with an array for values: its name, and how many records a chunk holds."""
        rows = elements_per_chunk(self.nbytes) if self.flat else rows_per_chunk(self.nbytes)
        return replace(self, array="value", rows=rows)


def new_form(number: int, dtype: str, shape: tuple[int, ...] | int) -> Form:
    """A form that keeps no values yet.

    shape: the one shape of its records; an int makes it flat, for up to so many dimensions.
    """
    if isinstance(shape, int):
        return Form(number, dtype, None, shape, f"forms/{flat_name(dtype, shape)}")
    return Form(number, dtype, shape, len(shape), f"forms/{form_name(dtype, shape)}")


def shape_of(sizes: Any) -> tuple[int, ...]:
    """The shape in a catalogue line. Raises ValueError where no array can have such a shape."""
    shape = tuple(whole(size, most=_MOST) for size in items(sizes))
    if len(shape) > MOST_DIMS or prod(shape) > _MOST_ELEMENTS:
        raise ValueError("no array has such a shape")
    return shape
