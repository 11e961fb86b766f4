"""How many bytes the stored values of records take."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.store import RankReader

__all__ = ["stored_sizes"]

Array = np.ndarray[Any, Any]


def stored_sizes(reader: RankReader, rows: Array) -> Array:
    """Return for each of these rows of a rank's table the bytes of its stored values, as int64.

    rows: row numbers. The size is 0 for a record whose values were not kept.
    """
    shapes, codes = reader.shape_codes(rows)
    numel = np.array([prod(shape) for shape in shapes] or [0], np.int64)[codes]
    forms = [dtypes.dtype(form.dtype) for form in reader.catalogue.forms]
    widths = np.array([kind.storage.itemsize for kind in forms] or [0], np.int64)
    sizes: Array = numel * widths[reader.column("form")[rows]] * reader.kept(rows)
    return sizes
