"""The class `Series`, by which users read the records of one name, kind and mode on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib import dtypes
from anchorlib.errors import (
    AmbiguousTensorError,
    RaggedError,
    UnknownTensorError,
    ValuesNotKeptError,
)
from anchorlib.names import escape, join
from anchorlib.reading.columns import Columns
from anchorlib.reading.dataframes import series_array, series_frame
from anchorlib.reading.lazy import Chunks
from anchorlib.reading.row_histogram import pooled
from anchorlib.reading.showing import series_html, series_line
from anchorlib.reading.sizes import stored_sizes
from anchorlib.record import Coordinates, Flag, Record
from anchorlib.store import RankReader, SeriesEntry, TensorTree
from anchorlib.summary import ArraySummary, Log2Histogram, log2_histogram

if TYPE_CHECKING:
    import pandas as pd
    import torch
    import xarray

__all__ = ["Series", "series_at", "tensor_tree"]

Array = np.ndarray[Any, Any]
KNOWN_FLAGS = int(Flag.VALUE_DROPPED | Flag.STEP_SKIPPED | Flag.SCALED)


class Series:
    """The records of one name, kind and mode on one rank, in order of execution.

    It has the records that were committed when the Series was made; for later records, ask the Run
    for a new one.
    """

    def __init__(self, reader: RankReader, entry: SeriesEntry, rows: Array) -> None:
        self._reader = reader
        self._entry = entry
        self._rows = rows

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self._entry.name

    @property
    def kind(self) -> str:
        """The kind of the records: value, grad, pass_grad, updated, delta or opt.KEY.

        Of a parameter, `grad` is the gradient that the optimizer took, `pass_grad` is what one
        backward contributed to it, `updated` the value after the step, `delta` its change, and
        opt.KEY the optimizer's state. Of other tensors, `grad` is the gradient that reached them.
        Operands of traced operations have the kinds op.in.ARGUMENT, op.out, op.out:1 and
        op.out.ARGUMENT.
        """
        return self._entry.kind

    @property
    def mode(self) -> str:
        """The mode that the records were made by, as text: "all" or "sum:window=10"."""
        return self._entry.mode

    @property
    def rank(self) -> int:
        """The rank that recorded the series."""
        return self._reader.rank

    @property
    def stored(self) -> tuple[RankReader, int, Array]:
        """Where the records are stored: (reader of the rank, number of the series, row numbers)."""
        return self._reader, self._entry.id, self._rows

    @property
    def columns(self) -> Columns:
        """A mapping from column names, such as "step", to arrays with one entry per record."""
        return Columns(self._reader, self._rows)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The tensor shape of each record."""
        return self._reader.shapes(self._rows)

    @property
    def dtypes(self) -> list[str]:
        """The element type of each record, by torch's name, such as "float32"."""
        return self._reader.dtypes(self._rows)

    @property
    def kept(self) -> Array:
        """A bool array: for each record whether its values are stored, not its summary alone."""
        return self._reader.kept(self._rows)

    @property
    def sizes(self) -> Array:
        """An int array: the bytes of each record's stored values; 0 where they were not kept."""
        return stored_sizes(self._reader, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Record]:
        """Yield each record without its summary; its values are read when it is reached."""
        return self.records()

    def where(
        self,
        *,
        steps: Sequence[int] | range | None = None,
        pass_index: int | None = None,
        call: int | None = None,
        phase: str | None = None,
        attempt: int | None = None,
        kept: bool | None = None,
    ) -> Series:
        """Return a Series of the records that match every argument; None matches all.

        The Series may be empty.

        steps: a range or a sequence of step numbers.
        kept: True takes records whose values are stored, False those with a summary alone.
        """
        wanted = {"pass_index": pass_index, "call": call, "phase": phase, "attempt": attempt}
        columns = self.columns
        seen = np.ones(len(self), bool)
        if steps is not None:
            seen &= _among(columns["step"], steps)
        for name, value in wanted.items():
            if value is not None:
                seen &= columns[name] == value
        if kept is not None:
            seen &= self.kept == kept
        return Series(self._reader, self._entry, self._rows[seen])

    def between(self, first: int, stop: int) -> Series:
        """Return the records `first` to `stop` (exclusive) as a Series; positions count from 0."""
        return Series(self._reader, self._entry, self._rows[first:stop])

    def values(self) -> Array:
        """Return all values, shape (record, *tensor shape); bfloat16 and fp8 as float32.

        Raises RaggedError where records differ in shape or dtype, ValuesNotKeptError where the
        values of some record were not kept (use `where(kept=True)` to leave such records out, or
        `records` to go through all), DamagedError where stored values are not those recorded.
        """
        raw, dtype = self.raw()
        return dtypes.decode(raw, dtype)

    def raw(self) -> tuple[Array, str]:
        """Return all values as stored (bfloat16 as uint16, …), and torch's name of their dtype.

        The array has an entry for each record along its first axis. Raises the errors of `values`.
        """
        dtype, _ = self.form()
        return self._reader.stack(self._rows), dtype

    def form(self) -> tuple[str, tuple[int, ...]]:
        """Return the (dtype, shape) that all records have in common.

        Raises RaggedError where the records differ, ValuesNotKeptError where the values of a record
        were not kept, UnknownTensorError where there is no record.
        """
        self._check_kept()
        forms = self._reader.forms(self._rows)
        if len(forms) > 1:
            some = ", ".join(f"{dtype} {list(shape)}" for dtype, shape in sorted(forms)[:3])
            raise RaggedError(
                f"the records of {self} have {len(forms)} shapes ({some}, …): go through them with "
                ".records(), or narrow them with .where()"
            )
        if not forms:
            raise UnknownTensorError(f"{self} has no record here: there are no values to stack")
        return forms.pop()

    def at(
        self, *, step: int, pass_index: int = 0, call: int = 0, phase: str | None = None
    ) -> Record:
        """Return the record at a step, pass and call; if there are several, the last one recorded.

        phase: the record's phase; None if only one phase has a record at this step, pass and call.
        Raises UnknownTensorError if there is no record, AmbiguousTensorError if several phases have
        one and `phase` is None.
        """
        records = self.where(steps=[step], pass_index=pass_index, call=call, phase=phase)
        if not len(records):
            raise UnknownTensorError(self._nothing_at(step, pass_index, call, phase))
        phases = sorted(set(records.columns["phase"].tolist()))
        if len(phases) > 1:
            names = ", ".join(escape(p) for p in phases)
            raise AmbiguousTensorError(
                f"{self} has several phases at step {step}: {names}; give phase="
            )
        return records.record(len(records) - 1)

    def records(self, *, summaries: bool = False) -> Iterator[Record]:
        """Yield each record; its values are read when the iteration comes to it.

        summaries: whether records with values get a summary too, whose histogram may have to be
            counted from the values. Records without values always have one.

        Raises DamagedError where stored values are not those that were recorded.
        """
        for index in range(len(self)):
            yield self.record(index, summary=summaries)

    def record(self, index: int, *, summary: bool = False) -> Record:
        """Return the record at position `index` (from 0) of the series.

        summary: whether a record with values gets a summary too; one without values always has it.
        """
        row = int(self._rows[index])
        cell = self._reader.cell
        kept = self._reader.kept(self._rows[index : index + 1])[0]
        raw = self._reader.raw(row) if kept else None
        phases = self._reader.catalogue.phases
        return Record(
            name=self.name,
            kind=self.kind,
            mode=self.mode,
            coordinates=Coordinates(
                step=int(cell("step", row)),
                pass_index=int(cell("pass_index", row)),
                call=int(cell("call", row)),
                phase=phases[cell("phase", row)],
                attempt=int(cell("attempt", row)),
            ),
            order=int(cell("order", row)),
            time_ns=int(cell("time_ns", row)),
            dtype=self._reader.dtypes(self._rows[index : index + 1])[0],
            shape=self._reader.shapes(self._rows[index : index + 1])[0],
            raw=raw,
            summary=self._summary(index, raw) if summary or raw is None else None,
            count=int(cell("count", row)),
            rank=self.rank,
            flags=Flag(int(cell("flags", row)) & KNOWN_FLAGS),
            scale=float(cell("scale", row)),
        )

    def histogram(self, *, steps: Sequence[int] | range | None = None) -> Log2Histogram:
        """Return one log2 histogram of all elements of all records, or of the records of `steps`.

        Values are read only for records without a stored histogram. Raises DamagedError where a
        histogram or values are not as they were written.

        steps: a range or a sequence of step numbers; None for all.
        """
        return pooled(self._reader, self.where(steps=steps)._rows)  # noqa: SLF001 - a Series too

    def histograms(self, first: int = 0, stop: int | None = None) -> list[Log2Histogram]:
        """Return the log2 histogram of each of the records `first` to `stop` (exclusive)."""
        return self._reader.histograms(self._rows[first:stop])

    def bins(self, first: int = 0) -> tuple[Array, Array, Array]:
        """Return every histogram bin of every record from position `first` on.

        The bins are three parallel arrays: the record's position minus `first`, the exponent of the
        bin, and its count.
        """
        return self._reader.bins(self._rows[first:])

    def to_torch(self) -> torch.Tensor:
        """Return all values as one tensor, in the dtype that was recorded.

        It has an entry for each record along its first axis. Raises the errors of `values`.
        """
        from anchorlib.reading.tensors import as_tensor

        return as_tensor(*self.raw())

    def to_xarray(self, chunks: Chunks | None = None) -> xarray.DataArray:
        """Return all values as a DataArray, with coordinates such as step along "record".

        chunks: None reads the values now. Otherwise the values are a dask array, and the process
            that computes a chunk reads it: {} takes the chunks of the store, "auto" joins small
            chunks, {"record": 100} or a number sets their size.

        Raises what `values` raises, MissingExtraError where xarray (and dask, for chunks) is not
        installed, OptionError for chunks that do not fit the values.
        """
        return series_array(self, chunks)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each record and a column for each of `columns`.

        The elements are not in it: `values` returns them. Raises MissingExtraError where pandas is
        not installed.
        """
        return series_frame(self)

    def __repr__(self) -> str:
        return series_line(self)

    def _repr_html_(self) -> str:
        return series_html(self)

    def __str__(self) -> str:
        return f"{escape(join(self.name, self.kind))} (mode {escape(self.mode)}, rank {self.rank})"

    def _summary(self, index: int, raw: Array | None) -> ArraySummary:
        row = int(self._rows[index])
        cell = self._reader.cell
        high, low = (int(cell(name, row)) for name in ("digest_high", "digest_low"))
        figures = {name: float(cell(name, row)) for name in ("min", "max", "sum", "l2")}
        if raw is not None and cell("hist_length", row) < 0:  # the values are in memory already
            histogram = log2_histogram(raw, self._reader.dtypes(self._rows[index : index + 1])[0])
        else:
            histogram = self._reader.histograms(self._rows[index : index + 1])[0]
        return ArraySummary(
            digest=((high << 64) | low).to_bytes(16), **figures, histogram=histogram
        )

    def _check_kept(self) -> None:
        missing = int(np.count_nonzero(~self.kept))
        if self.mode == "summary" and missing:
            raise ValuesNotKeptError(
                f"{self} keeps summaries only: see .columns and .histogram(), or record it with "
                "another mode"
            )
        if missing:
            raise ValuesNotKeptError(
                f"the values of {missing} of {len(self)} records of {self} were dropped because "
                "the queue or the disk was full; .where(kept=True) has those that are there"
            )

    def _nothing_at(self, step: int, pass_index: int, call: int, phase: str | None) -> str:
        steps = self.columns["step"]
        have = f"it has steps {steps.min()} to {steps.max()}" if len(steps) else "it has no records"
        where = f"step {step}, pass {pass_index}, call {call}"
        return f"{self} has no record at {where}{f', phase {phase!r}' if phase else ''}; {have}"


def series_at(reader: RankReader, number: int, rows: Array) -> Series:
    """Return the given rows of a series as a Series.

    reader: reads the rank that recorded the series.
    number: the number of the series in the rank's catalogue.
    rows: row numbers in the rank's table of records.
    """
    return Series(reader, reader.catalogue.series[number], rows)


def tensor_tree(run: str, parts: Iterable[Series]) -> TensorTree:
    """Return the records of these series as a zarr hierarchy with one array for each tensor.

    run: the run's name. Nothing is copied; the arrays are made from rows when they are read.
    """
    return TensorTree(run, ((one._reader, one._entry, one._rows) for one in parts))  # noqa: SLF001


def _among(values: Array, wanted: Sequence[int] | range) -> Array:
    if isinstance(wanted, range) and wanted.step == 1:
        return (values >= wanted.start) & (values < wanted.stop)
    return np.isin(values, list(wanted))
