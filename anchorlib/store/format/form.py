"""A form: what records of one dtype and shape have in common, and which arrays hold their data."""

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
    """One form as the catalogue describes it: records of one dtype and shape share its arrays.

    A flat form instead holds records of one dtype and many shapes, their elements end to end.

    id: the number of the form in its rank. dtype: torch's name without "torch.".
    shape: the shape of its records; None for a flat form.
    ndim: how many axes the shape has. A flat form stores each record's shape as `ndim` numbers, -1
    behind the end of a shape.
    group: the zarr group of its arrays, as a path below the rank.
    array: the name of the array of its values; None until the first values are stored.
    rows: how many records (elements, where the form is flat) a chunk of that array holds.
    starts, shapes: names of the arrays that say where each record of a flat form begins, and what
    shape the record has.
    labels: (column, array) for each column of the table that is repeated beside the values, in the
    array of that name. label_rows: how many records a chunk of such an array holds.
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
        """Whether this form is flat, that is, each of its records has its own shape."""
        return self.shape is None

    @property
    def seed(self) -> int:
        """The seed of the form (dtype and shape), one of two numbers that seed a row's checksum.

        It is XORed with the seed of the row's series.
        """
        return seed_of(self.dtype, self.shape, self.ndim)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of one record; in a flat form (records of many shapes) of one element."""
        return dtypes.dtype(self.dtype).storage.itemsize * prod(self.shape or ())

    def begun(self) -> Form:
        """Return a copy of this form (dtype and shape) that has an array for values.

        The array's chunks hold as many records as `chunk_sizes` says.
        """
        rows = elements_per_chunk(self.nbytes) if self.flat else rows_per_chunk(self.nbytes)
        return replace(self, array="value", rows=rows)


def new_form(number: int, dtype: str, shape: tuple[int, ...] | int) -> Form:
    """Return a form (the description of records of one dtype and shape) without an array yet.

    number: the number of the form in its rank. shape: the shape of all its records. If it is an
        int, the form is flat: it holds records of many shapes, and stores that many numbers for the
        shape of each.
    """
    if isinstance(shape, int):
        return Form(number, dtype, None, shape, f"forms/{flat_name(dtype, shape)}")
    return Form(number, dtype, shape, len(shape), f"forms/{form_name(dtype, shape)}")


def shape_of(sizes: Any) -> tuple[int, ...]:
    """Return a shape as a tuple, from the list of sizes in a catalogue line.

    Raises ValueError where no array can have such a shape, or `sizes` is no list of sizes.
    """
    shape = tuple(whole(size, most=_MOST) for size in items(sizes))
    if len(shape) > MOST_DIMS or prod(shape) > _MOST_ELEMENTS:
        raise ValueError("no array has such a shape")
    return shape
