"""The zarr.json documents of a run, which others read it by, compared with its catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import StoreError
from anchorlib.store.catalog import SeriesEntry, Variant
from anchorlib.store.layout import COLUMNS, COORDINATES, HIST_COLUMNS, array_suffix
from anchorlib.store.location import Location
from anchorlib.store.metadata import group_json, stamp
from anchorlib.store.publishing import catalogue_json, coordinate_json, rank_json
from anchorlib.store.table import column_json
from anchorlib.store.variants import FlatVariant, OpenVariant, PlainVariant

if TYPE_CHECKING:
    from anchorlib.store.rank import RankReader
    from anchorlib.store.slots import ChunkFiles

__all__ = ["document_faults", "run_faults"]

MOST_BYTES = 64 << 20  # of a document; that of a rank, the longest, has one line an attempt
GROWING = ("shape", "attributes")  # behind the rows, where a run was not closed to its end


def run_faults(run: Location) -> Iterator[str]:
    """What is wrong with the document of the run itself; its name may have changed since."""
    told = json.loads(group_json(stamp()))
    yield from _faults(run, "", told, passed_over=("attributes",))


def document_faults(rank: Location, reader: RankReader) -> Iterator[str]:
    """What is wrong with the documents of one rank, the location of which is `rank`."""
    catalogue = reader.catalogue
    sizes = _sizes(reader) if catalogue.state == "closed" and _is_published(rank) else None
    told = {
        "": rank_json(catalogue),
        "catalog": catalogue_json(reader.catalogue_end),
        "records": group_json(stamp()),
        "tensors": group_json(stamp()),
    }
    for name, dtype in COLUMNS.items():
        if name != "check" or catalogue.checked is not None:
            told[f"records/{name}"] = column_json(dtype, reader.committed)
    told |= _tensors(reader, sizes or {})
    for key, document in told.items():
        passed_over = () if sizes is not None else GROWING
        yield from _faults(rank, key, json.loads(document), passed_over=passed_over)
    for name, dtype in HIST_COLUMNS.items():
        pairs = json.loads(column_json(dtype, 0, "pair"))
        yield from _faults(rank, f"records/{name}", pairs, passed_over=("shape",))


def _is_published(rank: Location) -> bool:
    """Whether the rank's own document, the last that a writer puts down, says that it is closed."""
    return b'"state":"closed"' in (rank.get("zarr.json", 0, MOST_BYTES) or b"")


def _sizes(reader: RankReader) -> dict[int, tuple[int, int]] | None:
    """How many rows and elements each variant has; None where the table is too damaged to say."""
    try:
        rows = np.zeros(len(reader.catalogue.variants), np.int64)
        np.maximum.at(rows, reader.column("variant"), reader.column("row") + 1)
        return {
            one.id: (count, reader.flat_elements(one, count) if one.flat else 0)
            for one, count in zip(reader.catalogue.variants, rows.tolist(), strict=True)
        }
    except (StoreError, ValueError, OverflowError, MemoryError, IndexError):
        return None


def _tensors(reader: RankReader, sizes: Mapping[int, tuple[int, int]]) -> dict[str, bytes]:
    """The documents of all series, of the arrays of each and, where it has rows, their labels."""
    found = {}
    for series in reader.catalogue.series:
        group = f"tensors/{series.path}"
        found[group.rpartition("/")[0]] = group_json(stamp(name=series.name))
        about = stamp(name=series.name, kind=series.kind, mode=series.mode)
        found[group] = group_json(about)
        own = [one for one in reader.catalogue.variants if one.series == series.id]
        for index, entry in enumerate(own):
            if entry.array is None:
                continue
            rows, elements = sizes.get(entry.id, (0, 0))
            variant = _variant(series, entry, index)
            variant.rows = rows
            if isinstance(variant, FlatVariant):
                variant.elements = elements
            found |= {f"{group}/{name}": text for name, text in variant.documents().items()}
            if rows:
                suffix = array_suffix(index)
                label = coordinate_json(suffix, rows)
                found |= {f"{group}/{name}{suffix}": label for name in COORDINATES}
    return found


def _variant(series: SeriesEntry, entry: Variant, index: int) -> OpenVariant:
    """The variant as its writer held it, of which only the documents are wanted."""
    place = ("", cast("ChunkFiles", None))
    storage = dtypes.dtype(entry.dtype).storage
    if entry.shape is None:
        return FlatVariant(entry, series, storage, index, *place)
    return PlainVariant(entry, series, storage, index, *place, shape=entry.shape)


def _faults(
    location: Location, key: str, told: dict[str, Any], *, passed_over: tuple[str, ...]
) -> Iterator[str]:
    """What of the document at `key` is not as `told`."""
    path = f"{key}/zarr.json".lstrip("/")
    data = location.get(path, 0, MOST_BYTES)
    if data is None:
        yield f"{path} is missing"
        return
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "is cut, or no JSON"
        yield f"{path} {why}: other zarr readers refuse it"
        return
    if not isinstance(found, dict):
        yield f"{path} is no JSON object: other zarr readers refuse it"
        return
    for name, value in told.items():
        if name not in passed_over and found.get(name) != value:
            yield f"{path} says another {name} than the catalogue"
