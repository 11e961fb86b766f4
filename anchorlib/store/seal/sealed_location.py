"""A sealed rank presented under the keys, rows and bytes that it had as a live rank.

Rows keep the numbers with which they were written, so checksums that cover row numbers still fit.
The sealed arrays behind them are sorted by series, so the values of a tensor are one range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from anchorlib.errors import DamagedError
from anchorlib.store.format import chunk_key, rank_name
from anchorlib.store.locations import Location, RowLocation, RowSource, Within
from anchorlib.store.seal.arrays import SealedArray
from anchorlib.store.seal.faults import sealed_faults
from anchorlib.store.seal.live_rows import FlatRows, SealedRows, inverse_of
from anchorlib.store.seal.manifest import Sealed, read_sealed
from anchorlib.store.seal.sharded_elements import ShardCaches, ShardedElements

__all__ = ["SealedRank", "rank_location"]


class SealedRank(RowLocation):
    """The location of a sealed rank of the run at `run`; keys are relative to the rank's folder.

    A sealed rank is compressed for an archive; before, it was live, as its writer wrote it. The
    chunk files of the live rank can be read here, and are made from the sealed arrays. For all
    other keys the objects of the sealed rank are read. sealed: the rank's `sealed.json`.
    """

    def __init__(self, run: Location, sealed: Sealed) -> None:
        self.run = run
        self.sealed = sealed
        self._name = sealed.folder
        self._rank = Within(run, self._name)
        self._caches = ShardCaches()
        self._sources: dict[str, RowSource] = {}
        begin = len(self._name) + 1
        self._sizes = {one.key[begin:]: one.size for one in sealed.objects}

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file.

        A chunk file that the rank had before it was sealed is rebuilt from the sealed arrays.
        """
        folder, _, name = key.rpartition("/")
        source, array = self.rows_of(folder), self._serving.get(folder)
        if source is None or array is None:
            return self._rank.get(key, start, length)
        dims = len(source.shape)
        number = name.split(".")[1] if name.startswith("c.") else ""
        if not number.isdecimal() or name != chunk_key(int(number), dims):
            return None
        first = int(number) * array.rows
        if first >= source.count:
            return None
        return _file(source, first, array.rows, start, length)

    def list(self, prefix: str) -> list[str]:
        """Return the names in the folder at `prefix`, sorted; names of folders end in "/".

        For the folder of an array that the rank had before sealing, these are the names that it
        had then: zarr.json and its chunk files. For any other folder they are the names of what
        the sealed rank has there.
        """
        source, array = self.rows_of(prefix.strip("/")), self._serving.get(prefix.strip("/"))
        if source is None or array is None:
            return self._rank.list(prefix)
        chunks = range(-(-source.count // array.rows))
        return sorted(["zarr.json", *(chunk_key(chunk, len(source.shape)) for chunk in chunks)])

    def rows_of(self, key: str) -> RowSource | None:
        """Return an object that reads the rows of the array that was at `key` before sealing.

        Return None where no array was there. Raises DamagedError where `sealed.json` contradicts
        itself.
        """
        array = self._serving.get(key)
        if array is None:
            return None
        if key not in self._sources:
            self._sources[key] = self._source(array, key)
        return self._sources[key]

    def faults(self) -> Iterator[str]:
        """Yield in words what is wrong with the rank's objects; read each object completely."""
        return sealed_faults(self.run, self.sealed)

    def _source(self, array: SealedArray, key: str) -> RowSource:
        elements = self._elements(array)
        if not array.columns:
            if array.sorted_by is None:
                return SealedRows(elements, array.grid.shape[0], array.grid.shape[1:])
            return self._values(elements, array.sorted_by, key)
        rows = array.grid.shape[1]
        places = [number for number, name in enumerate(array.serves) if name == key]
        order = None
        if array.sorted_by is not None:
            order = inverse_of(self._label(array.sorted_by, "written_row"), key)
        # Several columns make up the shapes of a flat form; any other array is a single column.
        is_wide = array.columns[places[0]].startswith("shape_")
        shape = (len(places),) if is_wide else ()
        return SealedRows(elements, rows, shape, order, places)

    def _values(self, elements: ShardedElements, labels: str, key: str) -> RowSource:
        if "written_start" in self._array(labels).columns:
            starts = self._label(labels, "start")
            return FlatRows.of(elements, starts, self._label(labels, "written_start"))
        order = inverse_of(self._label(labels, "written_row"), key)
        shape = elements.array.grid.shape
        if shape[0] != len(order):
            raise DamagedError(f"{self.sealed.key} is damaged: {labels} is not of {key}")
        return SealedRows(elements, shape[0], shape[1:], order)

    def _label(self, key: str, name: str) -> np.ndarray[Any, Any]:
        """Return one label of all records of a form, in the order of the sealed arrays.

        Labels are facts about each record, such as its series and step, stored beside its values.

        key: the sealed array of labels, with a column for each label. name: the label's name, such
            as "step". Raises DamagedError where the array or the column is missing.
        """
        array = self._array(key)
        if name not in array.columns:
            raise DamagedError(f"{self.sealed.key} is damaged: {key} has no column {name}")
        columns = [array.columns.index(name)]
        rows = SealedRows(self._elements(array), array.grid.shape[1], columns=columns)
        return rows.span(0, rows.count)

    def _elements(self, array: SealedArray) -> ShardedElements:
        return ShardedElements(self._rank, self._name, array, self._sizes, self._caches)

    def _array(self, key: str) -> SealedArray:
        if key not in self._arrays:
            raise DamagedError(f"{self._name}/sealed.json speaks of {key}, and does not know it")
        return self._arrays[key]

    @cached_property
    def _arrays(self) -> Mapping[str, SealedArray]:
        try:
            arrays = {
                key: SealedArray.read(key, entry) for key, entry in self.sealed.arrays.items()
            }
            if any(
                one.grid.shape[1] > self.sealed.records for one in arrays.values() if one.columns
            ):
                raise ValueError("one of its tables has more rows than the rank")
            return arrays
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{self.sealed.key} is damaged: {error}") from error

    @cached_property
    def _serving(self) -> Mapping[str, SealedArray]:
        """By the key of each array before sealing: the sealed array that holds its rows now."""
        arrays = self._arrays.values()
        return {key: array for array in arrays for key in array.serves if key is not None}

    def __repr__(self) -> str:
        return f"SealedRank({self.run!r}, {self.sealed.rank})"


def rank_location(run: Location, rank: int, part: int = 0) -> Location:
    """Return the location of one rank of the run at `run`, whether live or sealed for an archive.

    Both are read alike. part: the number of the part of the rank; 0 where the rank is whole. Raises
    DamagedError where its `sealed.json` is damaged.
    """
    sealed = read_sealed(run, rank, part)
    return Within(run, rank_name(rank, part)) if sealed is None else SealedRank(run, sealed)


def _file(source: RowSource, first: int, rows: int, start: int, length: int | None) -> bytes:
    """Return bytes of a chunk file as it was before sealing, made from the rows in it.

    The file has zeros behind the last row of the array.

    source: reads the rows of the array. first: the number of the first row in the file. rows: how
        many rows the file has room for. start, length: which bytes of the file; a length of None
        reads to its end.
    """
    width = source.dtype.itemsize * prod(source.shape)
    stop = rows * width if length is None else min(start + length, rows * width)
    if start >= stop:
        return b""
    low, high = start // width, -(-stop // width)
    have = min(high, source.count - first)
    data = source.span(first + low, first + have).tobytes() if have > low else b""
    return data.ljust((high - low) * width, b"\0")[start - low * width : stop - low * width]
