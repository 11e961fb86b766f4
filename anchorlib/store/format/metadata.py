"""The zarr.json documents of groups and arrays, made by zarr-python's own classes.

zarr is imported when the first document is made: readers of runs never need zarr.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from anchorlib.record import HEADER_DEPTH
from anchorlib.store.format.layout import FORMAT, VERSION

__all__ = ["ArrayShape", "Growing", "array_json", "group_json", "stamp"]


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array as zarr.json describes it; its first dimension grows, its chunks are raw bytes.

    chunks: how many elements a chunk has along each axis. dimensions: names of the axes.
    attributes: what the array's zarr.json says under "attributes".
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def stamp(**fields: Any) -> dict[str, Any]:
    """Return the attributes of a zarr group or array, all below the one key "anchor".

    fields: attributes to add there, beside the name and version of the store's format.
    """
    return {"anchor": {"format": FORMAT, "version": VERSION, **fields}}


def group_json(attributes: Mapping[str, Any]) -> bytes:
    """Return the zarr.json of a group with these attributes."""
    return _dump({**_group(), "attributes": attributes})


def array_json(array: ArrayShape) -> bytes:
    """Return the zarr.json of an array whose chunks are uncompressed files such as "c.0.0"."""
    grid = {"name": "regular", "configuration": {"chunk_shape": array.chunks}}
    return _dump(
        {
            **_template(array.dtype),
            "shape": array.shape,
            "chunk_grid": grid,
            "dimension_names": array.dimensions,
            "attributes": array.attributes,
        }
    )


class Growing:
    """The zarr.json of an array whose first dimension grows, as text with the length left open.

    array: the array when it has no rows. The constructor raises ValueError for an array that has a
    row already.
    """

    def __init__(self, array: ArrayShape) -> None:
        self._head, mark, self._tail = array_json(array).partition(b'"shape":[0')
        if not mark:
            raise ValueError("a growing array begins without rows")

    def at(self, rows: int) -> bytes:
        """Return the zarr.json of the array when it has `rows` rows."""
        return b'%b"shape":[%d%b' % (self._head, rows, self._tail)


@lru_cache(maxsize=1)
def _group() -> dict[str, Any]:
    from zarr.core.group import GroupMetadata

    document: dict[str, Any] = GroupMetadata(attributes={}).to_dict()
    document.pop("consolidated_metadata", None)
    return document


@lru_cache(maxsize=64)
def _template(dtype: np.dtype[Any]) -> dict[str, Any]:
    # create_array costs a millisecond, so it runs once a dtype: arrays of a dtype differ in shape,
    # chunks, names and attributes alone.
    import zarr
    from zarr.codecs import BytesCodec
    from zarr.core.buffer import default_buffer_prototype

    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(1,),
        chunks=(1,),
        dtype=dtype,
        serializer=BytesCodec(endian="big") if dtype.str[0] == ">" else "auto",
        compressors=None,
        filters=None,
        fill_value=np.zeros((), dtype).item(),
        chunk_key_encoding={"name": "default", "separator": "."},
        dimension_names=["record"],
    )
    # The document that zarr would write: metadata.to_dict() leaves the codecs as objects.
    buffers = array.metadata.to_buffer_dict(default_buffer_prototype())
    document: dict[str, Any] = json.loads(buffers["zarr.json"].to_bytes())
    return document


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def json_value(value: object, depth: int = HEADER_DEPTH) -> Any:
    """Return a copy of `value` that JSON can hold: NaN and infinities become None, keys text.

    depth: how many levels of lists and mappings `value` may have, counting a plain value inside as
        a level. Raises TypeError where there are more, and for a value that JSON cannot hold.
    """
    if not depth:
        raise TypeError(f"it nests lists and mappings more than {HEADER_DEPTH} deep")
    if isinstance(value, Mapping):
        return {str(key): json_value(item, depth - 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [json_value(item, depth - 1) for item in value]
    if isinstance(value, np.generic):
        return json_value(value.item(), depth)
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")
