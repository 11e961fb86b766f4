"""What differs in runs of format 1, which anchorlib 0.1 wrote and every later one reads.

    rank<r>/records/variant                     in place of `series` and `form`
    rank<r>/tensors/<name>/<kind>/value         one for each variant: value, value_1, flat_2
                                 /step pass_index call

    {"series": 0, "name": "fc1", "kind": "grad", "mode": "all", "path": "fc1/grad"}
    {"variant": 0, "series": 0, "dtype": "float32", "shape": [10]}   many shapes: "ndim" for "shape"
    {"array": 0, "name": "value", "rows": 3276}

A variant is one dtype and shape of one series; a flat variant has many shapes. Readers treat each
variant as a form (in later formats: one dtype and shape, of all series).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from anchorlib import dtypes
from anchorlib.store.format.checks import seed_of
from anchorlib.store.format.chunk_sizes import ROWS_PER_CHUNK, shape_rows
from anchorlib.store.format.fields import text, whole
from anchorlib.store.format.form import MOST_DIMS, Form, shape_of
from anchorlib.store.format.layout import COLUMNS, ROW
from anchorlib.store.format.metadata import ArrayShape

__all__ = ["ROW_1", "Format1", "columns_of", "older_arrays"]

LABELS: Final = ("step", "pass_index", "call")
LABEL_ROWS: Final = 8192

_NAMES: Final = (
    "variant", "attempt", "row", "step", "pass_index", "call", "order", "time_ns", "count", "phase",
    "flags", "scale", "digest_high", "digest_low", "zero", "nan", "inf", "subnormal", "min", "max",
    "sum", "l2", "hist_offset", "hist_length",
)  # fmt: skip

ROW_1: Final = np.dtype([(name, "<u4" if name == "variant" else ROW[name]) for name in _NAMES])
"""The dtype of one table row in format 1, with its columns in the order that the checksum covers.
"""


@dataclass(slots=True)
class Format1:
    """What a catalogue of format 1 says for which `Catalogue` has no field of its own.

    A variant is one dtype and shape of one series.
    paths: for each series number, the path of its zarr group. owners: for each variant number, the
    number of its series. counts: {series number: how many variants it has so far}.
    """

    paths: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)

    def variant(self, entry: Mapping[str, Any]) -> Form:
        """Add the variant that a catalogue line describes; return the variant as a form.

        A variant is one dtype and shape of one series. Raises ValueError or KeyError for a line
        that describes no variant.
        """
        shape = shape_of(entry["shape"]) if "shape" in entry else None
        ndim = whole(entry["ndim"], 1, MOST_DIMS) if shape is None else len(shape)
        series = whole(entry["series"], most=len(self.paths) - 1)
        index = self.counts.get(series, 0)
        self.counts[series] = index + 1
        self.owners.append(series)
        suffix = f"_{index}" if index else ""
        flat = f"flat{suffix}"
        return Form(
            whole(entry["variant"]),
            text(entry["dtype"]),
            shape,
            ndim,
            group=f"tensors/{self.paths[series]}",
            starts=f"{flat}_offset",
            shapes=f"{flat}_shape",
            labels=tuple((name, f"{name}{suffix}") for name in LABELS),
            label_rows=LABEL_ROWS,
        )

    def identity(self, form: Form, series: tuple[str, str, str]) -> int:
        """Return the number that seeds the checksums of a variant's rows.

        form: the variant. series: the (name, kind, mode) of the series that the variant belongs to.
        """
        return seed_of(*series, form.dtype, form.shape, form.ndim)


def columns_of(version: int) -> Mapping[str, np.dtype[Any]]:
    """Return the columns of the table in format `version`, as their dtypes by name.

    The table has one row for each record.
    """
    if version > 1:
        return COLUMNS
    return {**{name: ROW_1[name] for name in _NAMES}, **{n: COLUMNS[n] for n in ("check", "seq")}}


def older_arrays(form: Form, rows: int, elements: int) -> dict[str, ArrayShape]:
    """Return {name: layout} of each array of a variant of format 1 that keeps values.

    A variant is one dtype and shape of a series. Labels (arrays of step, pass and call) are left
    out where there are no rows.

    form: the variant. rows: how many records it has. elements: how many elements these have
    together; used only for a variant of many shapes.
    """
    storage, value = dtypes.dtype(form.dtype).storage, str(form.array)
    suffix = value.removeprefix("value").removeprefix("flat")
    record, int64 = f"record{suffix}", np.dtype("<i8")
    label = ArrayShape(int64, (rows,), (LABEL_ROWS,), (record,))
    labels = {name: label for _, name in form.labels if rows}
    if form.shape is not None:
        chunks = (form.rows, *(max(size, 1) for size in form.shape))
        dims = (record, *(f"d{axis}{suffix}" for axis in range(len(form.shape))))
        return {**labels, value: ArrayShape(storage, (rows, *form.shape), chunks, dims)}
    wide = (shape_rows(form.ndim), form.ndim)
    return {
        **labels,
        value: ArrayShape(storage, (elements,), (form.rows,), (f"element{suffix}",)),
        form.starts: ArrayShape(int64, (rows,), (ROWS_PER_CHUNK,), (record,)),
        form.shapes: ArrayShape(int64, (rows, form.ndim), wide, (record, f"axis{suffix}")),
    }
