"""The forms of one rank as its writer holds them: the arrays of values that many series share.

    forms/float32_8x8/value           (record, 8, 8)
                     /series step pass_index call
    forms/flat_float32/value          elements of all records, one after the other
                      /start          where each record's elements begin, -1 where none were kept
                      /shape          (record, 8), -1 behind the end of a shape
                      /series step pass_index call

A form is the records of one dtype and shape; a flat form holds records of many shapes. Of a block
of records the values are written first (`OpenForm.write`). They count once the block's table rows
are committed (`OpenForm.settle`). Values that were written and not settled are overwritten by the
next block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.block import Buffer
from anchorlib.store.disk import NodeWriter
from anchorlib.store.format import (
    LABELS,
    ROWS_PER_CHUNK,
    ArrayShape,
    Form,
    Growing,
    group_json,
    shape_rows,
    stamp,
)
from anchorlib.store.write.open_files import ChunkFiles
from anchorlib.store.write.slots import SlotArray

__all__ = ["Addition", "OpenForm"]

Array = np.ndarray[Any, Any]
INT64 = np.dtype("<i8")
JOINED_BYTES = 1 << 16  # larger records are written from their own buffers, not copied together


@dataclass(frozen=True, slots=True)
class Addition:
    """What a block of records adds to the arrays of one form; not written yet.

    A form is the records of one dtype and shape; a flat form holds records of many shapes.
    values: buffers with the values of the block's records, end to end.
    rows, elements: how many rows, and in a flat form how many elements, the form gets.
    starts, shapes: the new rows of the arrays `start` and `shape`; None where the form is not flat.
    """

    form: OpenForm
    values: Sequence[Buffer]
    rows: int
    elements: int = 0
    starts: Array | None = None
    shapes: Array | None = None


@dataclass(slots=True, eq=False)
class OpenForm:
    """The writer's arrays for records of one dtype and shape (a form); new records are appended.

    A flat form holds records of one dtype and many shapes, their elements end to end.

    entry: the form as the catalogue describes it. rank: the directory of the rank.
    files: keeps the chunk files open.
    rows, elements: how many are settled, that is, belong to committed rows of the table.
    series: by the number of each series with published records in this form, its entry in the JSON
        of the group's attributes.
    arrays, documents: by the name of each array, the object that writes its rows, and its zarr.json
        for any length; empty until `open` is called.
    """

    entry: Form
    rank: str
    files: ChunkFiles
    rows: int = 0
    elements: int = 0
    series: dict[int, bytes] = field(default_factory=dict)
    arrays: dict[str, SlotArray] = field(default_factory=dict)
    documents: dict[str, Growing] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The directory of the zarr group that has this form's arrays."""
        return f"{self.rank}/{self.entry.group}"

    @property
    def storage(self) -> np.dtype[Any]:
        """The dtype of the stored values on disk."""
        return dtypes.dtype(self.entry.dtype).storage

    @property
    def nbytes(self) -> int:
        """Bytes of one record, or of one element in a flat form (records of many shapes)."""
        return self.entry.nbytes

    def open(self, entry: Form) -> None:
        """Prepare this form's arrays for writing; write nothing yet.

        entry: the form's description in the catalogue, which names the array of the values.
        """
        self.entry = entry
        for name, array in _arrays(entry, self.storage).items():
            nbytes = array.dtype.itemsize * prod(array.chunks[1:])
            if name == "value":
                nbytes = self.nbytes
            path, dims = f"{self.path}/{name}", len(array.chunks) - 1
            self.arrays[name] = SlotArray(self.files, path, nbytes, array.chunks[0], dims)
            self.documents[name] = Growing(array)

    def make(self, tree: NodeWriter) -> None:
        """Create the form's zarr group with its empty arrays on disk, by a single rename."""
        below = {name: document.at(0) for name, document in self.documents.items()}
        tree.make(self.path, self.about(), below)

    def about(self) -> bytes:
        """Return the zarr.json of the form's group, which lists the series with records here."""
        shape = list(self.entry.shape) if self.entry.shape is not None else None
        document = group_json(stamp(dtype=self.entry.dtype, shape=shape, series={}))
        head, opening, tail = document.rpartition(b'"series":{}')
        return b"%b%b%b%b" % (head, opening[:-1], b",".join(self.series.values()), b"}" + tail)

    def shown(self) -> Mapping[str, bytes]:
        """Return the zarr.json of each array of this form at its present length, by array name.

        The array of values comes last, so that it never shows a row without its labels (series,
        step, pass, call).
        """
        counts = {"value": self.elements if self.entry.flat else self.rows}
        order = sorted(self.documents, key=lambda name: name == "value")
        return {name: self.documents[name].at(counts.get(name, self.rows)) for name in order}

    def write(self, addition: Addition) -> None:
        """Write the values of a block of records behind the values of all committed rows.

        In a flat form (records of many shapes) also write where each record's elements start, and
        the shapes.
        """
        at = self.elements if self.entry.flat else self.rows
        if addition.values and self.nbytes:
            values = self.arrays["value"]
            for buffer in _joined(addition.values, self.nbytes):
                values.write_packed(at, buffer)
                at += len(buffer) // self.nbytes
        if addition.starts is not None and addition.shapes is not None:
            self.arrays["start"].write_packed(self.rows, addition.starts.astype(INT64).tobytes())
            self.arrays["shape"].write_packed(self.rows, addition.shapes.astype(INT64).tobytes())

    def settle(self, addition: Addition) -> None:
        """Count an addition as final, because its rows were committed.

        The next addition is written behind it instead of over it.
        """
        self.rows += addition.rows
        self.elements += addition.elements


def _joined(buffers: Sequence[Buffer], nbytes: int) -> Sequence[Buffer]:
    if nbytes > JOINED_BYTES or len(buffers) == 1:
        return buffers
    return [b"".join(buffers)]


def _arrays(entry: Form, storage: np.dtype[Any]) -> dict[str, ArrayShape]:
    """Return the layout of each array of a new form (one dtype and shape), by array name.

    The arrays have no rows yet.
    """
    about = {**stamp(dtype=entry.dtype), "coordinates": " ".join(LABELS)}
    # zarr wants chunks of at least one element; an empty tensor never has a chunk file.
    shape = entry.shape or ()
    chunks = (entry.rows, *(max(size, 1) for size in shape))
    dims = ("record", *(f"d{axis}" for axis in range(len(shape))))
    label = ArrayShape(INT64, (0,), (ROWS_PER_CHUNK,), ("record",))
    arrays = dict.fromkeys(LABELS, label)
    if not entry.flat:
        return {**arrays, "value": ArrayShape(storage, (0, *shape), chunks, dims, about)}
    width = entry.ndim
    wide = (shape_rows(width), width)
    return {
        **arrays,
        "start": replace(label, attributes=about),
        "shape": ArrayShape(INT64, (0, width), wide, ("record", "axis"), about),
        "value": ArrayShape(storage, (0,), chunks, ("element",), stamp(dtype=entry.dtype)),
    }
