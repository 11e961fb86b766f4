"""The encoding of the page's data: a JSON document, and beside it a compressed block of numbers.

An array stands in the document as {"$": [dtype, offset, length]}: `length` little-endian numbers
that begin `offset` bytes into the block. In the page the block is base64 of a zlib stream, since
browsers can inflate that themselves.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import numpy as np

__all__ = ["ArrayPacker"]

ALIGNMENT = 8  # bytes; a browser's Float64Array begins at a multiple of them
LEVEL = 6
SPLIT = "\n"


class ArrayPacker:
    """Collects the arrays of a document in one block of bytes, while the document is made."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def array(self, values: Any, dtype: str) -> dict[str, list[Any]]:
        """Append an array, flattened in C order, to the block; return its reference.

        The reference is what stands for the array in the document: `{"$": [dtype, offset, size]}`,
        where `offset` counts bytes of the block and `size` counts numbers.
        dtype: "u1", "u2", "u4", "i2", "i4", "f4" or "f8".
        """
        flat = np.ascontiguousarray(
            np.asarray(values).reshape(-1), np.dtype(dtype).newbyteorder("<")
        )
        raw = flat.tobytes()
        offset = self._length
        padding = -len(raw) % ALIGNMENT
        self._parts += [raw, bytes(padding)]
        self._length += len(raw) + padding
        return {"$": [dtype, offset, flat.size]}

    def whole(self, values: Any) -> dict[str, list[Any]]:
        """Append an array of whole numbers from 0 on, in the narrowest dtype that holds them.

        Return its reference, what stands for the array in the document (see `array`).
        """
        most = np.max(values, initial=0)
        fitting = (dtype for dtype in ("u1", "u2", "u4") if most <= np.iinfo(dtype).max)
        return self.array(values, next(fitting, "f8"))

    def rough(self, values: Any) -> dict[str, list[Any]]:
        """Append an array as float32, rounded to 13 bits of precision (0.01 %).

        Return its reference, what stands for the array in the document (see `array`).
        Rounded numbers compress better, and are exact enough where the page shows them as colours.
        """
        bits = np.ascontiguousarray(np.asarray(values, "<f4").reshape(-1)).view("<u4")
        # Adding half of the unit that is cut off rounds to nearest. A carry into the exponent is
        # right: it is the next power of two.
        rounded = np.where(np.isfinite(values).reshape(-1), (bits + 0x400) & 0xFFFFF800, bits)
        return self.array(rounded.astype("<u4").view("<f4"), "f4")

    def text(self, document: Any) -> str:
        """Return `document` as JSON, a line break, then the compressed block as base64.

        The text is safe inside a <script> element. document: what holds the arrays' references.
        """
        block = base64.b64encode(zlib.compress(b"".join(self._parts), LEVEL)).decode()
        return f"{script_json(document)}{SPLIT}{block}"


def script_json(value: Any) -> str:
    """Return `value` as JSON in ASCII without <, > and &, so that no text in it ends a <script>.

    NaN and infinities become null.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Return a copy of `value` with None for each NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, np.generic):
        return _finite(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
