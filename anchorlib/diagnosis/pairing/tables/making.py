"""Makes a table of a run's records, column by column, so that no record is handled alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anchorlib import dtypes
from anchorlib.diagnosis.pairing.tables.representatives import NO_REPRESENTATIVES, Representatives
from anchorlib.diagnosis.pairing.tables.stored import StoredValues
from anchorlib.diagnosis.pairing.tables.table import State, Table, Tensor
from anchorlib.names import is_operand_kind, select
from anchorlib.reading import Run
from anchorlib.store import RankReader

__all__ = ["table_of", "with_own_digests"]

Array = np.ndarray[Any, Any]
SIGNED = ("step", "pass_index", "call", "order", "attempt", "count", "flags")
COUNTS = ("zero", "nan", "inf", "subnormal")
SUMS = ("min", "max", "sum", "l2")


def table_of(
    run: Run,
    selectors: Sequence[str] = ("*",),
    *,
    rank: int | None = None,
    chosen: set[tuple[str, str]] | None = None,
    standing: Representatives = NO_REPRESENTATIVES,
) -> Table:
    """Return a table of the records that the selectors name, of one rank or of all.

    A run that is still written gives the records that were committed at the time of the call.
    Values of traced operations are left out, unless a selector names nothing else: two runs may run
    different operations, or one run alone may have kept values, and neither is a difference.
    rank: the rank that is read; None for all.
    chosen: the (name, kind) pairs themselves, instead of selectors.
    standing: ranks that are not read -> for each the equal rank whose rows it gets.
    Raises UnknownTensorError for a selector that names nothing, OptionError for a rank that
    recorded nothing.
    """
    ranks = run.ranks if rank is None else [rank]
    parts = {own: run.rows(own) for own in ranks if own not in standing}
    if chosen is None:
        chosen = _chosen(run, selectors, [reader for reader, _ in parts.values()])
    making = _Making()
    for own in ranks:
        if own in standing:
            making.stand(own, standing[own])
        else:
            making.add(*parts[own], chosen)
    gaps: dict[tuple[str, str], int] = {}
    first: int | None = None
    for gap in run.gaps(rank):
        key = (gap.name, gap.kind)
        if _is_wanted(key, chosen):
            gaps[key] = gaps.get(key, 0) + gap.count
            first = gap.first_step if first is None else min(first, gap.first_step)
    return making.table(run.name, gaps, first, _state(run), standing)


def with_own_digests(table: Table, run: Run) -> Table:
    """Return the table with the true digests of ranks that were not read.

    Until then such a rank has the digests of the equal rank that was read in its place. The rank's
    own digests are read now, not its values.
    """
    if not table.standing:
        return table
    digests, ranks = np.array(table.digest), table.rank
    chosen = {(tensor.name, tensor.kind) for tensor in table.tensors}
    for rank in table.standing:
        reader, rows = run.rows(rank)
        taken = [(tensor.name, tensor.kind) in chosen for tensor in reader.catalogue.series]
        rows = rows[np.array(taken, bool)[reader.series_ids[rows]]]
        digests[ranks == rank] = _digests(reader, rows)
    return replace(table, digest=digests, standing=NO_REPRESENTATIVES)


def _state(run: Run) -> State:
    if run.state == "closed":
        return "closed"
    return "died" if run.live is False else "open"


def _chosen(
    run: Run, selectors: Sequence[str], readers: Sequence[RankReader]
) -> set[tuple[str, str]] | None:
    """Return the (name, kind) pairs that the selectors name; None where they name all."""
    if tuple(selectors) in ((), ("*",)):
        return None
    pairs = [(entry.name, entry.kind) for reader in readers for entry in reader.catalogue.series]
    chosen: set[tuple[str, str]] = set()
    for selector in selectors:
        named = select([selector], pairs, where=f" in {run.name}")
        chosen.update([one for one in named if not is_operand_kind(one[1])] or named)
    return chosen


def _is_wanted(pair: tuple[str, str], chosen: set[tuple[str, str]] | None) -> bool:
    """Return whether `chosen` holds a (name, kind) pair.

    None for `chosen` stands for all pairs but those of traced operations' values.
    """
    return not is_operand_kind(pair[1]) if chosen is None else pair in chosen


@dataclass(slots=True)
class _Making:
    """Collects the columns of a table rank by rank, until `table` joins them.

    tensors, phases, dtypes, shapes: what the codes (indices) in the columns stand for.
    parts: the columns of each rank. readers: the reader of each rank that is read, with the rows
    taken from it.
    places: rank -> the index of its columns in `parts`, and of its tensors.
    stood: rank that is not read -> the reader of the equal rank that is read in its place.
    """

    tensors: list[Tensor] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], int] = field(default_factory=dict)
    parts: list[dict[str, Array]] = field(default_factory=list)
    readers: list[tuple[RankReader, Array]] = field(default_factory=list)
    places: dict[int, tuple[int, range]] = field(default_factory=dict)
    stood: dict[int, RankReader] = field(default_factory=dict)

    def add(self, reader: RankReader, rows: Array, chosen: set[tuple[str, str]] | None) -> None:
        """Add the records of one rank to the table, as far as they are of the chosen tensors.

        reader: reads the rank. rows: the numbers, in the reader, of the records that may be added.
        chosen: (name, kind) pairs; None: all but values of traced operations.
        """
        catalogue = reader.catalogue
        series = catalogue.series[:]
        taken = np.array([_is_wanted((entry.name, entry.kind), chosen) for entry in series], bool)
        owner = reader.series_ids[rows]
        if not taken.all():
            rows, owner = rows[taken[owner]], owner[taken[owner]]
        # Only series that have records become tensors of the table.
        held, tensor = np.unique(owner, return_inverse=True)
        part = {"tensor": tensor.reshape(-1) + len(self.tensors)}
        own = [series[number] for number in held.tolist()]
        self.places[reader.rank] = (
            len(self.parts),
            range(first := len(self.tensors), first + len(own)),
        )
        self.tensors += [Tensor(one.name, one.kind, one.mode, reader.rank) for one in own]
        forms = [_code(self.dtypes, form.dtype) for form in catalogue.forms]
        part["dtype"] = _coded(forms, reader.column("form")[rows])
        phases = [_code(self.phases, phase) for phase in catalogue.phases]
        part["phase"] = _coded(phases, reader.column("phase")[rows])
        part |= self._shapes(reader, rows)
        whole = (*SIGNED, *COUNTS)
        part |= {name: _taken(reader.column(name), rows, np.int64) for name in whole}
        part |= {name: _taken(reader.column(name), rows, np.float64) for name in (*SUMS, "scale")}
        part["digest"] = _digests(reader, rows)
        part |= {"kept": reader.kept(rows), "row": rows}
        part["reader"] = np.full(len(rows), len(self.readers))
        self.parts.append(part)
        self.readers.append((reader, rows))

    def stand(self, rank: int, other: int) -> None:
        """Add rank `rank`, which is not read, with the columns of `other`, an equal rank."""
        number, own = self.places[other]
        part = dict(self.parts[number])
        part["tensor"] = part["tensor"] + (len(self.tensors) - own.start)
        self.parts.append(part)
        self.tensors += [self.tensors[one]._replace(rank=rank) for one in own]
        self.stood[rank] = next(reader for reader, _ in self.readers if reader.rank == other)

    def _shapes(self, reader: RankReader, rows: Array) -> dict[str, Array]:
        own, which = reader.shape_codes(rows)
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in own]
        codes = [_code(self.shapes, shape) for shape in own]
        return {"shape": _coded(codes, which), "numel": _coded(sizes, which)}

    def table(
        self,
        run: str,
        gaps: dict[tuple[str, str], int],
        gaps_from: int | None,
        state: State,
        standing: Representatives,
    ) -> Table:
        """Return the table of all ranks that were added; afterwards no more can be added.

        run: the run's name. gaps: how many observations are missing, by (name, kind).
        gaps_from: the first step of any gap.
        """
        names = ("tensor", "phase", *SIGNED, "scale", "dtype", "shape", "digest", "kept")
        figures = (*COUNTS, "numel", *SUMS)
        columns = {name: self._column(name) for name in (*names, *figures, "row", "reader")}
        readers = [reader for reader, _ in self.readers]
        of_ranks = sorted(
            [(reader.rank, reader) for reader in readers] + [*self.stood.items()], key=_rank
        )
        values = StoredValues(readers, columns.pop("reader"), columns.pop("row"))

        def stack(chosen: Array) -> Array:
            first = int(chosen[0])
            storage = dtypes.dtype(table.dtypes[table.dtype[first]]).storage
            return values.stack(chosen, int(table.figures["numel"][first]), storage)

        table = Table(
            run=run,
            tensors=self.tensors,
            phases=list(self.phases),
            dtypes=list(self.dtypes),
            shapes=list(self.shapes),
            figures=_figures({name: columns.pop(name) for name in figures}),
            edges={rank: list(one.catalogue.edges.values()) for rank, one in of_ranks},
            header={rank: _header(one) for rank, one in of_ranks},
            gaps=gaps,
            gaps_from=gaps_from,
            read=values.read,
            stack=stack,
            state=state,
            standing=standing,
            **columns,
        )
        return table

    def _column(self, name: str) -> Array:
        parts = [part.pop(name) for part in self.parts]
        if parts:
            return _spared(np.concatenate(parts) if len(parts) > 1 else parts[0])
        return np.empty((0, 2) if name == "digest" else 0, np.int64)


def _figures(figures: dict[str, Array]) -> dict[str, Array]:
    """Return the figures of a table, in which the sum and the norm of no elements are 0.0.

    A store has nan for both, which would make every largest norm nan.
    """
    empty = figures["numel"] == 0
    if empty.any():
        for name in ("sum", "l2"):
            figures[name] = np.where(empty, 0.0, figures[name])
    return figures


def _digests(reader: RankReader, rows: Array) -> Array:
    halves = [reader.column(name)[rows] for name in ("digest_high", "digest_low")]
    return np.stack(halves, axis=1).astype(np.uint64)


def _taken(column: Array, rows: Array, dtype: type[np.int64] | type[np.float64]) -> Array:
    """Return these rows of a stored column, converted to a dtype.

    Where they are all rows of the column and the dtype is the column's, it is returned uncopied.
    """
    every = len(rows) == len(column) and bool((rows == np.arange(len(rows))).all())
    taken: Array = (column if every else column[rows]).astype(dtype, copy=False)
    return taken


def _spared(column: Array) -> Array:
    """Return the column; if all entries are equal, as one entry broadcast, which saves memory."""
    if len(column) < 2 or column.ndim > 1 or not (column == column[0]).all():
        return column
    return np.broadcast_to(column[0].copy(), len(column))


def _code(known: dict[Any, int], value: Any) -> int:
    return known.setdefault(value, len(known))


def _coded(codes: Sequence[int], which: Array) -> Array:
    entries: Array = np.array(codes, np.int64)[which]
    return entries


def _rank(ranked: tuple[int, RankReader]) -> int:
    return ranked[0]


def _header(reader: RankReader) -> dict[str, Any]:
    attempts = reader.catalogue.attempts
    return dict(attempts[-1].header) if attempts else {}
