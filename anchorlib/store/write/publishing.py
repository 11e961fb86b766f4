"""Writes what zarr readers other than anchorlib's see: array shapes, and labels beside values.

Labels are the series, step, pass and call of each record, repeated in arrays beside its values.
anchorlib's readers need neither shapes nor labels. Data is written first and the zarr.json with the
shape that shows it afterwards, so a reader never sees rows that are not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.store.disk import NodeWriter
from anchorlib.store.format import (
    CATALOG_CHUNK,
    COLUMNS,
    HIST_COLUMNS,
    LABELS,
    ROWS_PER_CHUNK,
    ArrayShape,
    Catalogue,
    Growing,
    SeriesEntry,
    array_json,
    attempt_line,
    chunk_key,
    group_json,
    stamp,
)
from anchorlib.store.write.forms import OpenForm
from anchorlib.store.write.slots import SlotArray
from anchorlib.store.write.table import column_shape

if TYPE_CHECKING:
    from anchorlib.store.read import RankReader

__all__ = ["Publisher", "catalogue_json", "rank_json", "tell_series"]

Array = np.ndarray[Any, Any]
INT64 = np.dtype("<i8")


class Publisher:
    """Updates what zarr readers other than anchorlib's see of one rank, to its last committed row.

    Such readers see the zarr.json files, and the labels: the series, step, pass and call of each
    record, repeated in arrays beside its values.

    rank: the rank's directory. tree: writes the files.
    """

    def __init__(self, rank: Path, tree: NodeWriter) -> None:
        self._rank = rank
        self._tree = tree
        self._shown = b""
        self._chunks: set[tuple[str, int]] = set()  # label chunks that are known to have a file
        self._columns = {
            f"{rank}/records/{name}": (Growing(column_shape(dtype, name)), name in HIST_COLUMNS)
            for name, dtype in (COLUMNS | HIST_COLUMNS).items()
        }

    def publish_values(self, reader: RankReader, forms: Sequence[OpenForm], start: int) -> None:
        """Write labels and array shapes for all rows of the table from row `start` on.

        Labels are the series, step, pass and call of each record, beside its values.
        forms: all forms of the rank by number; a form has the arrays of one dtype and shape.
        """
        touched: dict[OpenForm, bool] = {}
        for first in range(start, reader.committed, ROWS_PER_CHUNK):
            stop = min(first + ROWS_PER_CHUNK, reader.committed)
            for form, labels in _labels(reader, forms, first, stop):
                self._write_labels(form, *labels)
                is_new = _tell(form, labels[1]["series"], reader.catalogue.series)
                touched[form] = touched.get(form, False) or is_new
        for form, is_new in touched.items():
            if is_new:
                self._tree.replace(form.path, form.about())
            for name, document in form.shown().items():
                self._tree.replace(f"{form.path}/{name}", document)

    def publish_table(self, rows: int, pairs: int, catalogue_end: int) -> None:
        """Write the lengths of the table's columns and of the catalogue into their zarr.json.

        rows, pairs: committed rows and histogram pairs. catalogue_end: bytes of the catalogue.
        """
        for path, (document, of_pairs) in self._columns.items():
            self._tree.replace(path, document.at(pairs if of_pairs else rows))
        self._tree.replace(self._rank / "catalog", catalogue_json(catalogue_end))

    def publish_rank(self, catalogue: Catalogue) -> None:
        """Write the rank's state and attempts into its group's attributes, if they changed."""
        document = rank_json(catalogue)
        if document != self._shown:  # a header in it may be large: written only where it changed
            self._tree.replace(self._rank, document)
            self._shown = document

    def _write_labels(self, form: OpenForm, first: int, labels: dict[str, Array]) -> None:
        for name, values in labels.items():
            array, start = form.arrays[name], first
            for part in _by_chunk(first, values):
                if part.any() or self._is_there(array, start // ROWS_PER_CHUNK):
                    array.write_packed(start, part.astype(INT64).tobytes())
                start += len(part)

    def _is_there(self, array: SlotArray, chunk: int) -> bool:
        """Return whether a chunk of `array` has a file; an absent chunk reads as zeros."""
        key = (array.path, chunk)
        if key not in self._chunks and Path(array.path, chunk_key(chunk, 0)).exists():
            self._chunks.add(key)
        return key in self._chunks


def _labels(
    reader: RankReader, forms: Sequence[OpenForm], start: int, stop: int
) -> Iterator[tuple[OpenForm, tuple[int, dict[str, Array]]]]:
    """Yield, for each form with entries for table rows start … stop - 1, where to write its labels.

    A form has the arrays of one dtype and shape; labels are the series, step, pass and call of each
    record, repeated beside its values. Each item is (form, (first row in the form's arrays, {label
    name: int array})). The labels go to consecutive rows, so the first row is enough to place them
    all. Records without values are skipped, except in a flat form (of many shapes), where they have
    an entry.
    forms: all forms of the rank, by number.
    """
    form_of, rows = reader.span("form", start, stop), reader.span("row", start, stop)
    labels = {name: reader.span(name, start, stop) for name in LABELS}
    with_row = np.flatnonzero(rows >= 0)
    order = with_row[np.argsort(form_of[with_row], kind="stable")]
    cuts = np.flatnonzero(np.diff(form_of[order])) + 1
    for part in np.split(order, cuts) if len(order) else ():
        own = {name: column[part] for name, column in labels.items()}
        yield forms[form_of[part[0]]], (int(rows[part[0]]), own)


def tell_series(reader: RankReader, forms: Sequence[OpenForm], start: int, stop: int) -> None:
    """Read from published rows which series each form holds, and add them to `form.series`.

    A form has the arrays of one dtype and shape; the attributes of its zarr group list its series.
    Nothing is written. forms: all forms of the rank, by number. start, stop: the table rows to look
    at; `stop` is exclusive.
    """
    for form, (_, labels) in _labels(reader, forms, start, stop):
        _tell(form, labels["series"], reader.catalogue.series)


def _tell(form: OpenForm, numbers: Array, series: Sequence[SeriesEntry]) -> bool:
    """Add series to the list that the attributes of a form's zarr group hold.

    numbers: series numbers, which may repeat. series: all series of the rank, by number. Return
        whether any was new.
    """
    fresh = [number for number in np.unique(numbers).tolist() if number not in form.series]
    for number in fresh:
        one = series[number]
        fields = {"name": one.name, "kind": one.kind, "mode": one.mode}
        form.series[number] = f'"{number}":{json.dumps(fields)}'.encode()
    return bool(fresh)


def _by_chunk(first: int, values: Array) -> list[Array]:
    begin = ROWS_PER_CHUNK - first % ROWS_PER_CHUNK
    return np.split(values, range(begin, len(values), ROWS_PER_CHUNK))


def catalogue_json(end: int) -> bytes:
    """Return the zarr.json of a rank's catalogue, an array of `end` bytes."""
    return array_json(ArrayShape(np.dtype(np.uint8), (end,), (CATALOG_CHUNK,), ("byte",)))


def rank_json(catalogue: Catalogue) -> bytes:
    """Return the zarr.json of a rank's group, whose attributes have its state and attempts."""
    attempts = [attempt_line(attempt) for attempt in catalogue.attempts]
    about = stamp(rank=catalogue.rank, state=catalogue.state, attempts=attempts)
    return group_json(about)
