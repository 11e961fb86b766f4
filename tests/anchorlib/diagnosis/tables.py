"""Tables made of records in memory, one by one and without a line of the store's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anchorlib.diagnosis.pairing.tables.table import Table, Tensor
from anchorlib.record import Edges, Record

Array = np.ndarray[Any, Any]
FIGURES = ("zero", "nan", "inf", "subnormal", "min", "max", "sum", "l2")
WHOLE = ("zero", "nan", "inf", "subnormal")


def table(
    records: Iterable[Record],
    *,
    run: str = "a",
    edges: Mapping[int, Sequence[Edges]] | None = None,
) -> Table:
    """The table of these records, each with its summary; sorted as a table is."""
    rows = sorted(records, key=lambda one: (one.rank, one.order))
    tensors = list(dict.fromkeys(Tensor(r.name, r.kind, r.mode, r.rank) for r in rows))
    phases, dtypes, shapes = (
        list(dict.fromkeys(values))
        for values in ([r.phase for r in rows], [r.dtype for r in rows], [r.shape for r in rows])
    )
    columns = {
        name: np.array([getattr(r, name) for r in rows], np.int64)
        for name in ("step", "pass_index", "call", "attempt", "order", "count")
    }
    figures = {
        name: np.array(
            [getattr(r.summary, name) for r in rows], np.int64 if name in WHOLE else np.float64
        )
        for name in FIGURES
    }
    figures["numel"] = np.array([int(np.prod(r.shape, dtype=np.int64)) for r in rows], np.int64)
    for name in ("sum", "l2"):  # of no elements
        figures[name][figures["numel"] == 0] = 0.0
    halves = [[int.from_bytes(part) for part in halved(r)] for r in rows]

    def read(row: int, nbytes: int) -> Iterator[Array]:
        raw = rows[row].raw
        assert raw is not None
        flat = np.ascontiguousarray(raw).reshape(-1)
        count = max(nbytes // flat.itemsize, 1)
        for start in range(0, len(flat), count):
            yield flat[start : start + count]

    return Table(
        run=run,
        tensors=tensors,
        phases=phases,
        dtypes=dtypes,
        shapes=shapes,
        tensor=numbers(tensors.index(Tensor(r.name, r.kind, r.mode, r.rank)) for r in rows),
        phase=numbers(phases.index(r.phase) for r in rows),
        dtype=numbers(dtypes.index(r.dtype) for r in rows),
        shape=numbers(shapes.index(r.shape) for r in rows),
        digest=np.array(halves, np.uint64).reshape(-1, 2),
        kept=np.array([r.raw is not None for r in rows], bool),
        scale=np.array([r.scale for r in rows], np.float64),
        figures=figures,
        edges=edges or {},
        header={},
        gaps={},
        read=read,
        **columns,
    )


def halved(record: Record) -> tuple[bytes, bytes]:
    """The digest's two halves."""
    assert record.summary is not None
    return record.summary.digest[:8], record.summary.digest[8:]


def numbers(values: Iterable[int]) -> Array:
    """A column of codes."""
    return np.array(list(values), np.int64)
