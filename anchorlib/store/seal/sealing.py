"""Seals a closed rank: makes a few large, compressed objects of its arrays and documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from anchorlib.errors import OptionError, StoreError
from anchorlib.names import escape
from anchorlib.store.format import (
    CATALOG_CHUNK,
    HIST_COLUMNS,
    ROWS_PER_CHUNK,
    Form,
    columns_of,
    group_json,
    rank_name,
    stamp,
)
from anchorlib.store.locations import LocalLocation, Location, Within
from anchorlib.store.seal.arrays import Elements, SealedArray, Written
from anchorlib.store.seal.chunk_grid import Grid
from anchorlib.store.seal.codecs import TABLES, VALUES, deflated
from anchorlib.store.seal.index_format import MOST_BYTES
from anchorlib.store.seal.manifest import Sealed, SealedObject, rank_document, read_sealed
from anchorlib.store.seal.object_target import Buffer, FolderTarget, Target
from anchorlib.store.seal.rank_index import INDEX, figures_of, index_document
from anchorlib.store.seal.sources import INT64, SortedForm, series_ranges, sorted_form
from anchorlib.store.seal.stacks import Stack, StackedColumn
from anchorlib.store.stored import LOG, RankRecords, StoredRows, operation_entries

__all__ = ["seal"]

LOCAL: Final = (LocalLocation, FolderTarget)
_MOST_NAME: Final = 120
BYTES: Final = np.dtype("u1")


def seal(
    run: Location, reader: RankRecords, into: Target, *, ended_elsewhere: bool = False
) -> Sealed:
    """Write a closed rank as sealed objects `into` a target; return what `sealed.json` says.

    `sealed.json` is written last. The same rank gives the same objects, byte by byte, so a target
    may keep objects that it has. All values are compared with their digests, all rows with their
    checksums. The run's own `zarr.json` is no part of a rank: the caller copies it. The call needs
    memory for the values of one shard (64 MiB), its compressed bytes, and the rank's table.

    run: the location of the run; its keys begin with "rank0/".
    reader: reads the rank there, or a part of it, which becomes a sealed part of the same name.
    ended_elsewhere: whether the rank is a part whose session moved to another collector, and was
        closed there, so that the part's own catalogue does not say that it was closed.

    Raises StoreError where the rank was not closed, or is sealed already; OptionError where `into`
    is the folder of `run`; DamagedError where rows or values do not fit their checksums; and the
    errors of the target.
    """
    _check(run, reader, into, ended_elsewhere=ended_elsewhere)
    reader.check_rows(np.arange(reader.committed))
    sealing = _Sealing(run, reader, into)
    sealing.put("zarr.json", rank_document(reader.catalogue))
    sealing.log("catalog", reader.catalogue_end)
    sealing.table()
    sealing.forms()
    sealing.operations()
    figures = figures_of(reader)
    document = index_document(figures)
    if len(document) <= MOST_BYTES:
        sealing.put(INDEX, deflated(document))
    made = Sealed(
        rank=reader.rank,
        uid=figures.uid,
        records=figures.records,
        bytes=figures.bytes,
        arrays=sealing.arrays,
        objects=tuple(sealing.objects),
        part=reader.part,
    )
    into.put(made.key, [made.document])
    return made


def _check(run: Location, reader: RankRecords, into: Target, *, ended_elsewhere: bool) -> None:
    what = f"rank {reader.rank} of {escape(reader.run or str(run))}"
    roots = [one.root.resolve() for one in (run, into) if isinstance(one, LOCAL)]
    if len(roots) > len({*roots}):
        raise OptionError(f"{what} cannot be sealed into the run itself: name another folder")
    if read_sealed(run, reader.rank, reader.part) is not None:
        raise StoreError(f"{what} is sealed already: copy its objects as they are")
    if reader.catalogue.state != "closed" and not ended_elsewhere:
        raise StoreError(
            f"{what} was not closed: wait until its training ends, or make a closed run of it with "
            "anchor repair"
        )


class _Sealing:
    """Writes the objects of one rank that is being sealed (compressed for an archive).

    objects, arrays: descriptions for `sealed.json` of the objects and arrays written so far.
    """

    def __init__(self, run: Location, reader: RankRecords, into: Target) -> None:
        self._name = rank_name(reader.rank, reader.part)
        self._rank = Within(run, self._name)
        self._reader = reader
        self._into = into
        self.objects: list[SealedObject] = []
        self.arrays: dict[str, Mapping[str, Any]] = {}

    def put(self, key: str, *parts: Buffer) -> None:
        """Store one object, and note its size and SHA-256 for `sealed.json`."""
        key = f"{self._name}/{key}"
        hasher = hashlib.sha256()
        for part in parts:
            hasher.update(part)
        self._into.put(key, parts)
        size = sum(map(len, parts))
        self.objects.append(SealedObject(key, size, hasher.hexdigest()))

    def log(self, key: str, end: int) -> None:
        """Store the first `end` bytes of the array of lines at `key`, the catalogue or a log."""
        source = StoredRows(self._rank, key, BYTES, CATALOG_CHUNK)
        array = SealedArray(key, BYTES, Grid.of((end,), 1), (key,), CATALOG_CHUNK)
        self._array(Written(array, ("byte",), TABLES), source.span)

    def table(self) -> None:
        """Store the table, all columns of a dtype as one array, and the pairs of all histograms.

        A pair is an exponent and how many elements have it.
        """
        reader = self._reader
        self.put("records/zarr.json", group_json(stamp()))
        by_dtype: dict[np.dtype[Any], dict[str, StackedColumn]] = {}
        for name, dtype in columns_of(reader.catalogue.version).items():
            if name != "check" or reader.catalogue.checked is not None:
                key = f"records/{name}"
                column = StackedColumn(StoredRows(self._rank, key, dtype).span, key)
                by_dtype.setdefault(dtype, {})[name] = column
        for dtype, columns in by_dtype.items():
            self._stack(Stack(f"records/{_word(dtype)}", dtype, reader.committed, columns))
        lengths = np.maximum(reader.column("hist_length"), 0)
        pairs = int((reader.column("hist_offset") + lengths).max(initial=0))
        for name, dtype in HIST_COLUMNS.items():
            key = f"records/{name}"
            grid = Grid.of((pairs,), dtype.itemsize)
            written = Written(
                SealedArray(key, dtype, grid, (key,), ROWS_PER_CHUNK), ("pair",), TABLES
            )
            self._array(written, StoredRows(self._rank, key, dtype).span)

    def forms(self) -> None:
        """Store values and labels of each form (records of one dtype and shape).

        Labels are the series, step, pass and call of each record, with the row that it had before
        sealing. They are stored in an array of their own.
        """
        self.put("forms/zarr.json", group_json(stamp()))
        for entry in self._reader.catalogue.forms:
            form = sorted_form(self._reader, self._rank, entry)
            if form is not None:
                self._form(form, _form_key(entry))

    def _form(self, form: SortedForm, key: str) -> None:
        entry, labels, served = form.entry, form.labels(), _served(form.entry)
        shape = None if entry.shape is None else list(entry.shape)
        series = {
            str(number): {**_named(self._reader, number), "records": records}
            for number, records in series_ranges(labels["series"]).items()
        }
        about = stamp(dtype=entry.dtype, shape=shape, series=series)
        self.put(f"{key}/zarr.json", group_json(about))
        columns = {
            name: StackedColumn.of(column, served.get(name)) for name, column in labels.items()
        }
        self._stack(Stack(f"{key}/labels", INT64, len(form.rows), columns, is_sorted=True))
        array = SealedArray(
            f"{key}/value",
            form.dtype,
            Grid.of(form.shape, form.dtype.itemsize),
            (f"{entry.group}/{entry.array}",),
            entry.rows,
            sorted_by=f"{key}/labels",
        )
        axes = ("element",) if entry.flat else ("record", *map("d{}".format, range(entry.ndim)))
        self._array(Written(array, axes, VALUES, stamp(dtype=entry.dtype)), form.values())

    def operations(self) -> None:
        """Store the log of traced operations, if there is one."""
        end = operation_entries(self._rank)[1]
        if end:
            self.put("ops/zarr.json", group_json(stamp()))
            self.log(LOG, end)

    def _stack(self, stack: Stack) -> None:
        self._array(stack.written(), stack.elements)

    def _array(self, written: Written, elements: Elements) -> None:
        array = written.array
        self.put(f"{array.key}/zarr.json", written.document())
        for key, parts in written.shards(elements):
            self.put(key, *parts)
        self.arrays[array.key] = array.entry()


def _word(dtype: np.dtype[Any]) -> str:
    """Return a dtype as a name: "uint64", or "uint64_big" for big-endian digests."""
    return f"{dtype.name}_big" if dtype.str[0] == ">" else dtype.name


def _form_key(entry: Form) -> str:
    """Return the path, below the rank, of the group for the sealed arrays of a form.

    A form is the records of one dtype and shape. In format 1 several forms shared a group; sealed,
    each of them gets a group of its own.
    """
    if entry.group.startswith("forms/"):
        return entry.group
    shape = "flat" if entry.shape is None else "x".join(map(str, entry.shape)) or "scalar"
    return f"forms/{entry.id}_{entry.dtype}_{shape}"[:_MOST_NAME]


def _named(reader: RankRecords, number: int) -> dict[str, str]:
    one = reader.catalogue.series[number]
    return {"name": one.name, "kind": one.kind, "mode": one.mode}


def _served(entry: Form) -> dict[str, str]:
    """Return, for each label of a form, the key of the array that has it before sealing.

    A form is the records of one dtype and shape. Labels are facts about each record (step, pass,
    call; in a flat form also its shape and where its elements begin), repeated beside the values.
    """
    served = {name: f"{entry.group}/{array}" for name, array in entry.labels}
    if entry.flat:
        served["written_start"] = f"{entry.group}/{entry.starts}"
        shapes = f"{entry.group}/{entry.shapes}"
        served |= {f"shape_{axis}": shapes for axis in range(entry.ndim)}
    return served
