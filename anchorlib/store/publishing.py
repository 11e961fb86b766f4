"""What foreign readers see: shapes in zarr.json, and the coordinates that xarray labels with.

Our own readers need none of it. Data comes first, the shape that shows it after.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from anchorlib.store.catalog import Catalogue, attempt_line
from anchorlib.store.layout import (
    CATALOG_CHUNK,
    COLUMNS,
    COORDINATE_ROWS,
    COORDINATES,
    HIST_COLUMNS,
    ROWS_PER_CHUNK,
)
from anchorlib.store.metadata import ArrayShape, array_json, group_json, stamp
from anchorlib.store.rank import RankReader
from anchorlib.store.slots import ChunkFiles, SlotArray
from anchorlib.store.table import column_json
from anchorlib.store.tree import Tree
from anchorlib.store.variants import OpenVariant

__all__ = ["Publisher"]

INT64 = np.dtype("<i8")


class Publisher:
    """Brings the metadata of one rank up to its committed rows."""

    def __init__(self, rank: Path, tree: Tree) -> None:
        self._rank = rank
        self._tree = tree
        self._files = ChunkFiles(1, tree)  # the writer's own stay open for values
        self._shown = b""
        self._labelled: dict[str, int] = {}  # labels that zarr.json shows, where that is known
        self._blank: set[str] = set()  # arrays of zeros so far, which need no chunk

    def publish_values(self, reader: RankReader, variants: list[OpenVariant], start: int) -> None:
        """Coordinates and shapes of every variant that has rows from table row `start` on."""
        touched: set[int] = set()
        for first in range(start, reader.committed, ROWS_PER_CHUNK):
            stop = min(first + ROWS_PER_CHUNK, reader.committed)
            touched.update(self._label(reader, variants, first, stop))
        for number in sorted(touched):
            variant = variants[number]
            if variant.rows == 0:
                continue
            for name in COORDINATES:
                self._coordinate_json(variant, name)
            for name, document in variant.documents().items():
                self._tree.replace(f"{variant.directory}/{name}", document)

    def publish_table(self, rows: int, pairs: int, catalogue_end: int) -> None:
        """The shapes of the columns and of the catalogue."""
        records = self._rank / "records"
        for name, dtype in COLUMNS.items():
            self._tree.replace(records / name, column_json(dtype, rows))
        for name, dtype in HIST_COLUMNS.items():
            self._tree.replace(records / name, column_json(dtype, pairs, "pair"))
        self._tree.replace(self._rank / "catalog", catalogue_json(catalogue_end))

    def close(self) -> None:
        """Closes the file it wrote last."""
        self._files.close()

    def publish_rank(self, catalogue: Catalogue) -> None:
        """State and attempts, in the attributes of the rank's group."""
        document = rank_json(catalogue)
        if document != self._shown:  # it holds the run's header, which may be large
            self._tree.replace(self._rank, document)
            self._shown = document

    def _label(
        self, reader: RankReader, variants: list[OpenVariant], start: int, stop: int
    ) -> set[int]:
        variant_of = reader.span("variant", start, stop)
        rows = reader.span("row", start, stop)
        labels = np.stack([reader.span(name, start, stop) for name in COORDINATES])
        with_row = np.flatnonzero(rows >= 0)
        order = with_row[np.argsort(variant_of[with_row], kind="stable")]
        cuts = np.flatnonzero(np.diff(variant_of[order])) + 1
        for part in np.split(order, cuts) if len(order) else ():
            self._write_labels(variants[variant_of[part[0]]], int(rows[part[0]]), labels[:, part])
        return set(variant_of.tolist())

    def _write_labels(self, variant: OpenVariant, first: int, labels: np.ndarray[Any, Any]) -> None:
        for name, values in zip(COORDINATES, labels, strict=True):
            path = f"{variant.directory}/{name}{variant.suffix}"
            if path not in self._labelled and not Path(path).exists():
                rows = first + len(values)
                made = self._tree.made(coordinate_json(variant.suffix, rows))
                self._blank.add(path)
                self._write(path, first, values, within=made)
                self._tree.move_in(made, path)
                self._labelled[path] = rows
            else:
                self._write(path, first, values)

    def _write(
        self, path: str, first: int, values: np.ndarray[Any, Any], within: str | None = None
    ) -> None:
        if path in self._blank:
            if not values.any():
                return
            self._blank.discard(path)
        array = SlotArray(self._files, within or path, INT64.itemsize, COORDINATE_ROWS)
        array.write_packed(first, values.astype(INT64).tobytes())

    def _coordinate_json(self, variant: OpenVariant, name: str) -> None:
        path = f"{variant.directory}/{name}{variant.suffix}"
        if self._labelled.get(path) != variant.rows:
            self._tree.replace(path, coordinate_json(variant.suffix, variant.rows))
            self._labelled[path] = variant.rows


@lru_cache(maxsize=64)
def coordinate_json(suffix: str, rows: int) -> bytes:
    """The zarr.json of one label of a variant's records."""
    return array_json(ArrayShape(INT64, (rows,), (COORDINATE_ROWS,), (f"record{suffix}",)))


def catalogue_json(end: int) -> bytes:
    """The zarr.json of the catalogue, `end` bytes long."""
    return array_json(ArrayShape(np.dtype(np.uint8), (end,), (CATALOG_CHUNK,), ("byte",)))


def rank_json(catalogue: Catalogue) -> bytes:
    """The zarr.json of a rank's group."""
    attempts = [attempt_line(attempt) for attempt in catalogue.attempts]
    about = stamp(rank=catalogue.rank, state=catalogue.state, attempts=attempts)
    return group_json(about)
