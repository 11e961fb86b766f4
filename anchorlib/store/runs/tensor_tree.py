"""Presents a run as a zarr hierarchy with an array of values for each tensor and kind.

    rank0/tensors/<name>/<kind>/value              (record, *shape); value_1 … for further shapes
                               /step pass_index call

The hierarchy is a location, like a directory, so `as_zarr` opens it as a zarr store. Nothing is
copied to disk: a group or a chunk is made when a reader asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.store.format import (
    ArrayShape,
    SeriesEntry,
    array_json,
    chunk_key,
    group_json,
    hashed_segment,
    kind_segment,
    rank_name,
    rows_per_chunk,
    segment,
    stamp,
)
from anchorlib.store.read import RankReader
from anchorlib.store.runs.rank_handle import RankHandle, packed_rows, rank_handle, unpacked_rows
from anchorlib.store.write import rank_json

__all__ = ["TensorTree", "rows_together"]

Array = np.ndarray[Any, Any]
Child = Callable[[], "ZarrNode"]
LABELS: Final = ("step", "pass_index", "call")
INT64: Final = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class ZarrNode:
    """A group or an array: its zarr.json, the nodes below it, and the chunks of an array.

    `children` and `chunks` have, by name, a function that makes the node or the chunk's bytes when
    it is needed.
    """

    document: bytes
    children: dict[str, Child] = field(default_factory=dict)
    chunks: dict[str, Callable[[], bytes]] = field(default_factory=dict)


class TensorTree:
    """A location that presents records of a run as zarr, with one array for each tensor.

    run: the name of the run. parts: for each series (all records of one tensor, kind and mode) on
        each rank that is shown: the reader of the rank, the series' entry in the rank's catalogue,
        and the numbers of the rows, in the rank's table, of the records that are shown.
    """

    def __init__(self, run: str, parts: Iterable[tuple[RankReader, SeriesEntry, Array]]) -> None:
        self._run = run
        self._parts: dict[int, list[ShownRows]] = {}
        for reader, entry, rows in parts:
            self._parts.setdefault(reader.rank, []).append(ShownRows(reader, entry, rows))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return up to `length` bytes of the file at `key` from `start` on; None for no file."""
        folder, _, name = key.rpartition("/")
        node = self._node(folder)
        if node is None:
            return None
        if name == "zarr.json":
            data = node.document
        elif name in node.chunks:
            data = node.chunks[name]()
        else:
            return None
        return data[start:] if length is None else data[start : start + length]

    def list(self, prefix: str) -> list[str]:
        """Return the names in a folder ("" is the root), sorted; names of folders end in "/".

        [] where there is no such folder.
        """
        node = self._node(prefix.strip("/"))
        if node is None:
            return []
        return sorted(["zarr.json", *node.chunks, *(f"{name}/" for name in node.children)])

    def _node(self, path: str) -> ZarrNode | None:
        node = self._root
        for name in path.split("/") if path else ():
            if name not in node.children:
                return None
            node = node.children[name]()
        return node

    @cached_property
    def _root(self) -> ZarrNode:
        ranks = {rank_name(rank): _once(_rank, parts) for rank, parts in self._parts.items()}
        return ZarrNode(group_json(stamp(tensors_of=self._run)), ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle names and row numbers, by which another process opens the run itself.

        Raises UnsupportedError where another process could not find the run.
        """
        parts = [part for some in self._parts.values() for part in some]
        pickled = [(rank_handle(one.reader), one.entry.id, packed_rows(one.rows)) for one in parts]
        return _opened, (self._run, pickled)

    def __repr__(self) -> str:
        return f"TensorTree({self._run!r})"


def _opened(run: str, pickled: Iterable[tuple[RankHandle, int, bytes]]) -> TensorTree:
    """Return the tree that was pickled, after opening its ranks in this process.

    run: the name of the run. pickled: for each series (all records of one tensor, kind and mode)
        the handle by which any process finds its rank; the number of the series in that rank; and
        the numbers of its shown rows, compressed by `packed_rows`.
    """
    parts = []
    for pin, number, rows in pickled:
        reader = pin.reader()
        parts.append((reader, reader.catalogue.series[number], unpacked_rows(rows)))
    return TensorTree(run, parts)


@dataclass(frozen=True, slots=True)
class ShownRows:
    """Those records of one series that a `TensorTree` shows, as row numbers of the rank's table."""

    reader: RankReader
    entry: SeriesEntry
    rows: Array


def _once(make: Callable[[Any], ZarrNode], of: Any) -> Child:
    made: list[ZarrNode] = []

    def child() -> ZarrNode:
        if not made:
            made.append(make(of))
        return made[0]

    return child


def _rank(parts: Sequence[ShownRows]) -> ZarrNode:
    tensors = _once(_tensors, parts)
    return ZarrNode(rank_json(parts[0].reader.catalogue), {"tensors": tensors})


def _tensors(parts: Sequence[ShownRows]) -> ZarrNode:
    """Return the zarr group of a rank's tensors, with a subgroup for each, named after the tensor.

    parts: the shown series of the rank.
    """
    named: dict[str, list[ShownRows]] = {}
    for part in parts:
        named.setdefault(part.entry.name, []).append(part)
    taken: set[str] = set()
    children = {}
    for name, own in named.items():
        folder = segment(name)
        # "A" and "a" are two tensors and, on some file systems, one directory.
        if folder.casefold() in taken:
            folder = hashed_segment(name, folder)
        taken.add(folder.casefold())
        children[folder] = _once(_tensor, own)
    return ZarrNode(group_json(stamp()), children)


def _tensor(parts: Sequence[ShownRows]) -> ZarrNode:
    """Return the zarr group of one tensor, with a group for each of its series.

    The group of a kind's first mode has the name of the kind; groups of further modes of that kind
    have kind and mode in their names.
    parts: the tensor's series on one rank.
    """
    children: dict[str, Child] = {}
    for part in parts:
        kind, mode = part.entry.kind, part.entry.mode
        plain = kind_segment(kind, None)
        children[kind_segment(kind, mode) if plain in children else plain] = _once(_series, part)
    return ZarrNode(group_json(stamp(name=parts[0].entry.name)), children)


def _series(part: ShownRows) -> ZarrNode:
    """Return the zarr group of one series, with an array of values for each dtype and shape.

    Beside each array of values are arrays of its labels: the step, pass and call of each record.
    Records without stored values are left out.
    """
    reader, entry = part.reader, part.entry
    about = stamp(name=entry.name, kind=entry.kind, mode=entry.mode)
    kept = part.rows[reader.kept(part.rows)]
    children: dict[str, Child] = {}
    for index, ((dtype, shape), places) in enumerate(_layouts(reader, kept).items()):
        suffix = f"_{index}" if index else ""
        rows = kept[places]
        for name in LABELS:
            children[f"{name}{suffix}"] = _once(_label, (reader, name, rows, suffix))
        children[f"value{suffix}"] = _once(_values, (part, dtype, shape, rows, suffix))
    return ZarrNode(group_json(about), children)


def _layouts(reader: RankReader, rows: Array) -> dict[tuple[str, tuple[int, ...]], Array]:
    """Return which of `rows` have which dtype and shape.

    The dict's keys are (dtype, shape), in order of appearance. A value is the indices, in `rows`,
    of the rows with that dtype and shape.
    """
    shapes, codes = reader.shape_codes(rows)
    pairs = list(zip(reader.dtypes(rows), codes.tolist(), strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    which = np.array([numbers[pair] for pair in pairs], np.int64)
    return {
        (dtype, shapes[code]): np.flatnonzero(which == number)
        for (dtype, code), number in numbers.items()
    }


def _label(source: tuple[RankReader, str, Array, str]) -> ZarrNode:
    reader, name, rows, suffix = source
    document = array_json(ArrayShape(INT64, (len(rows),), (len(rows),), (f"record{suffix}",)))
    chunk = reader.column(name)[rows].astype(INT64).tobytes
    return ZarrNode(document, chunks={chunk_key(0, 0): chunk})


def rows_together(rows: int, nbytes: int) -> int:
    """Return how many of `rows` records, of `nbytes` bytes each, one chunk holds."""
    return min(rows_per_chunk(nbytes), rows)


def _values(source: tuple[ShownRows, str, tuple[int, ...], Array, str]) -> ZarrNode:
    part, dtype, shape, rows, suffix = source
    entry, storage = part.entry, dtypes.dtype(dtype).storage
    nbytes = storage.itemsize * prod(shape)
    size = rows_together(len(rows), nbytes)
    about = stamp(name=entry.name, kind=entry.kind, mode=entry.mode, dtype=dtype)
    array = ArrayShape(
        storage,
        (len(rows), *shape),
        (size, *(max(extent, 1) for extent in shape)),
        (f"record{suffix}", *(f"d{axis}{suffix}" for axis in range(len(shape)))),
        {**about, "coordinates": " ".join(f"{name}{suffix}" for name in LABELS)},
    )

    def chunk(start: int) -> Callable[[], bytes]:
        def read() -> bytes:
            data: bytes = part.reader.stack(rows[start : start + size]).tobytes()
            return data.ljust(size * nbytes, b"\0")

        return read

    starts = range(0, len(rows), size) if nbytes else ()
    chunks = {chunk_key(start // size, len(shape)): chunk(start) for start in starts}
    return ZarrNode(array_json(array), chunks=chunks)
