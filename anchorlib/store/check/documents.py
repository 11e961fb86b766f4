"""Compares a run's zarr.json documents, which other zarr readers need, with its catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from anchorlib.errors import DamagedError, StoreError
from anchorlib.store.check.archived_digests import run_digest_faults
from anchorlib.store.format import (
    HIST_COLUMNS,
    LABELS,
    Growing,
    array_json,
    columns_of,
    group_json,
    older_arrays,
    stamp,
)
from anchorlib.store.locations import Location
from anchorlib.store.stored import operation_entries
from anchorlib.store.write import OpenForm, catalogue_json, column_shape, rank_json, tell_series

if TYPE_CHECKING:
    from anchorlib.store.read import RankReader
    from anchorlib.store.write import ChunkFiles

__all__ = ["document_faults", "due_documents", "run_faults"]

Sizes = Mapping[int, tuple[int, int]]

MOST_BYTES = 64 << 20  # of a document; the longest, that of a rank, has an entry for each attempt
GROWING = ("shape", "attributes")  # may lag behind the rows of a run that was not closed


def run_faults(run: Location) -> Iterator[str]:
    """Yield in words what is wrong with a run's own zarr.json, and with its archived digests.

    The archived digests (hashes of the records of each range of steps, which only archived runs
    have) are compared with the ranks. The attributes of zarr.json are not compared: they hold the
    name that the run had at first, and its author.
    """
    due = json.loads(group_json(stamp()))
    yield from _faults(run, "", due, passed_over=("attributes",))
    yield from run_digest_faults(run)


def document_faults(rank: Location, reader: RankReader) -> Iterator[str]:
    """Yield in words what is wrong with the zarr.json files of the rank at location `rank`."""
    catalogue = reader.catalogue
    sizes = _sizes(reader) if catalogue.state == "closed" and _is_published(rank) else None
    due = _documents(reader, sizes)
    try:
        due |= _operation_documents(rank)
    except DamagedError as damage:
        yield str(damage)
    passed_over = GROWING if sizes is None else ("attributes",) if catalogue.version == 1 else ()
    for key, document in due.items():
        yield from _faults(rank, key, json.loads(document), passed_over=passed_over)
    for name, dtype in HIST_COLUMNS.items():
        pairs = json.loads(array_json(column_shape(dtype, name)))
        yield from _faults(rank, f"records/{name}", pairs, passed_over=("shape",))


def due_documents(rank: Location, reader: RankReader) -> dict[str, bytes]:
    """Return {folder: content} of all zarr.json files that a rank's rows require, parents first.

    The rank has to be stored in format 2, the present one. Folders are relative to the rank's
    folder. Raises DamagedError where the log of operations is damaged, StoreError where rows are
    damaged.
    """
    documents = _documents(reader, _sizes(reader)) | _operation_documents(rank)
    lengths = np.maximum(reader.column("hist_length"), 0)
    pairs = int((reader.column("hist_offset") + lengths).max(initial=0))
    for name, dtype in HIST_COLUMNS.items():
        documents[f"records/{name}"] = Growing(column_shape(dtype, name)).at(pairs)
    return documents


def _operation_documents(rank: Location) -> dict[str, bytes]:
    """Return {folder: content} of the zarr.json files for the log of operations; {} without a log.

    Raises DamagedError for a damaged log.
    """
    if rank.get("ops/zarr.json", 0, 1) is None and not rank.list("ops/log"):
        return {}
    end = operation_entries(rank)[1]
    return {"ops": group_json(stamp()), "ops/log": catalogue_json(end)}


def _documents(reader: RankReader, sizes: Sizes | None) -> dict[str, bytes]:
    catalogue = reader.catalogue
    old = catalogue.version == 1
    documents = {
        "": rank_json(catalogue),
        "catalog": catalogue_json(reader.catalogue_end),
        "records": group_json(stamp()),
        "tensors" if old else "forms": group_json(stamp()),
    }
    for name, dtype in columns_of(catalogue.version).items():
        if name != "check" or catalogue.checked is not None:
            documents[f"records/{name}"] = Growing(column_shape(dtype, name)).at(reader.committed)
    return documents | (_arrays(reader, sizes) if old else _forms(reader, sizes))


def _is_published(rank: Location) -> bool:
    """Return whether the rank's own zarr.json, which a writer writes last, says "closed"."""
    return b'"state":"closed"' in (rank.get("zarr.json", 0, MOST_BYTES) or b"")


def _sizes(reader: RankReader) -> dict[int, tuple[int, int]] | None:
    """Return (rows, elements) of each form, by number; None if the table is too damaged.

    A form holds the records of one dtype and shape; a flat form holds records of one dtype and many
    shapes. rows: how many records the form has. elements: how many elements these have together in
    a flat form; 0 in any other form.
    """
    try:
        for name in LABELS:  # read here because `tell_series` needs them for forms' documents
            reader.column(name)
        rows = np.zeros(len(reader.catalogue.forms), np.int64)
        np.maximum.at(rows, reader.column("form"), reader.column("row") + 1)
        return {
            one.id: (count, reader.flat_elements(one, count) if one.flat else 0)
            for one, count in zip(reader.catalogue.forms, rows.tolist(), strict=True)
        }
    except (StoreError, ValueError, OverflowError, MemoryError, IndexError):
        return None


def _forms(reader: RankReader, sizes: Sizes | None) -> dict[str, bytes]:
    """Return {folder: content} of the zarr.json files of all forms that have values.

    A form holds the records of one dtype and shape (or of many shapes, if it is flat). It has a
    group, an array of values, and arrays of labels (series, step, pass, call) beside it; each has a
    zarr.json.

    sizes: (rows, elements) of each form, by number; None makes all arrays empty.
    """
    forms = []
    for entry in reader.catalogue.forms:
        form = OpenForm(entry, "", cast("ChunkFiles", None))  # makes documents, writes no rows
        forms.append(form)
        if entry.array is not None:
            form.open(entry)
            form.rows, form.elements = (sizes or {}).get(entry.id, (0, 0))
    if sizes is not None:
        tell_series(reader, forms, 0, reader.committed)
    documents = {}
    for form in forms:
        if form.entry.array is not None:
            documents[form.entry.group] = form.about()
            documents |= {f"{form.entry.group}/{name}": text for name, text in form.shown().items()}
    return documents


def _arrays(reader: RankReader, sizes: Sizes | None) -> dict[str, bytes]:
    """Return {folder: content} of the zarr.json files of a format 1 rank's forms that have values.

    Format 1 of the store is what anchorlib 0.1 wrote. The content is without attributes.

    sizes: (rows, elements) of each form, by number; None makes all arrays empty.
    """
    documents = {}
    for form in reader.catalogue.forms:
        if form.array is None:
            continue
        rows, elements = (sizes or {}).get(form.id, (0, 0))
        documents[form.group] = group_json({})
        arrays = older_arrays(form, rows, elements)
        documents |= {f"{form.group}/{name}": array_json(array) for name, array in arrays.items()}
    return documents


def _faults(
    location: Location, key: str, due: dict[str, Any], *, passed_over: tuple[str, ...]
) -> Iterator[str]:
    """Yield in words how the zarr.json in folder `key` differs from what it should be.

    due: the content that it should have. passed_over: names of top-level fields that are not
        compared.
    """
    path = f"{key}/zarr.json".lstrip("/")
    data = location.get(path, 0, MOST_BYTES)
    if data is None:
        yield f"{path} is missing"
        return
    try:
        stored = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is cut, or no JSON"
        yield f"{path} {why}: other zarr readers refuse it"
        return
    if not isinstance(stored, dict):
        yield f"{path} is no JSON object: other zarr readers refuse it"
        return
    for name, value in due.items():
        if name not in passed_over and stored.get(name) != value:
            yield f"{path} says another {name} than the catalogue"
