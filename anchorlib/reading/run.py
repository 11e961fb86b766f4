"""The class `Run`, by which users read a recorded run, and `open_run`, which makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorlib.errors import AmbiguousTensorError, DamagedError, OptionError, UnknownTensorError
from anchorlib.modes import Mode, parse_mode
from anchorlib.names import join, quoted, select
from anchorlib.operations import Op, OpGap, RecordMakers, gaps_of, read_entries, select_ops
from anchorlib.reading.dataframes import run_dataset, run_frame
from anchorlib.reading.rank_indexes import RankIndex, RankIndexes
from anchorlib.reading.series import Series, tensor_tree
from anchorlib.reading.showing import run_html, run_line
from anchorlib.reading.tensor_histograms import (
    TensorHistogram,
    histogram_of_figures,
    histogram_of_series,
    pairs_meant,
)
from anchorlib.reading.tensor_listing import listed_figures, listing
from anchorlib.record import Edges, Gap, Record, TensorInfo, summed_gaps
from anchorlib.store import (
    MergedSeries,
    RankDigests,
    RankReader,
    RunFigures,
    RunReader,
    StepFigures,
    as_zarr,
    asked,
    find_run,
    visible_rows,
    written_ns,
)
from anchorlib.summary import Log2Histogram
from anchorlib.summary import digest as digest_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from zarr.abc.store import Store

__all__ = ["Run", "open_run"]


def open_run(run: str | Path, store: str | Path | None = None) -> Run:
    """Open a run for reading, also while it is still being recorded.

    run: a name in `store`, a path ("anchors/run1.zarr"), or an address that ends in a name
        ("grpc://host:port/run1", "s3://bucket/prefix/run1").
    store: a directory, or the URL of a collector or object store; None means ANCHOR_STORE, else
        "anchors".

    Raises RunNotFoundError (whose message suggests similar names) where there is no such run,
    OptionError for an invalid address, CollectorError or StoreError where a collector or store
    cannot be read, MissingExtraError for an object store where obstore is not installed.
    """
    stored_run = find_run(run, store)
    return Run(RunReader(stored_run.location, stored_run.name, asked(run, store)))


class Run:
    """One recorded run, read up to the last record that its writer has committed.

    Each call looks for newly committed records, so the answers grow while a run is recorded.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._indexes = RankIndexes()
        self._makers: dict[int, tuple[tuple[int, int], RecordMakers]] = {}
        self._listed: tuple[list[Any], list[TensorInfo]] | None = None
        self._reader.refresh()

    @property
    def name(self) -> str:
        """The run's name."""
        return self._reader.name

    @property
    def ranks(self) -> list[int]:
        """The numbers of the ranks that have recorded something, ascending."""
        self._reader.refresh()
        return self._reader.ranks

    @property
    def state(self) -> str:
        """Whether the run is "closed" or "open".

        "closed" once the session of every rank was closed; "open" before that, also where a session
        has died unclosed.
        """
        self._reader.refresh()
        return self._reader.state

    @property
    def live(self) -> bool | None:
        """Whether a process is writing the run right now.

        None for a run that is not in a local directory: of a collector's run only the collector
        knows. A run that is open and not live was left behind by a process that died.
        """
        states = [self._reader.is_live(rank) for rank in self.ranks]
        return None if None in states else any(states)

    @property
    def is_copy(self) -> bool:
        """Whether the run's files are a copy, as by rsync, made while the run was being written.

        Of such a copy only complete rows are read: rows that were copied in part are left out.
        """
        self._reader.refresh()
        return self._reader.is_copy

    @property
    def steps(self) -> list[int]:
        """The steps that have records on any rank, ascending."""
        if self._figures is not None:
            return list(self._figures.steps)
        steps = {step for index in self._all() for step in np.unique(index.reader.column("step"))}
        return sorted(map(int, steps))

    @property
    def bytes(self) -> int:
        """Bytes of all stored values, also of those that a resumed run recorded a second time."""
        if self._figures is not None:
            return self._figures.bytes
        return sum(
            index.reader.stored_bytes(np.arange(index.reader.committed)) for index in self._all()
        )

    @property
    def started_ns(self) -> int:
        """The time when the first rank of the run began to record, in nanoseconds since the epoch.

        0 for a run without ranks.
        """
        if self._figures is not None:
            return self._figures.created_ns
        return min((one.catalogue.created_ns for one in self._readers_of(None)), default=0)

    @property
    def written_ns(self) -> int:
        """The time when the run was last written to, in nanoseconds since the epoch."""
        self._reader.refresh()
        return written_ns(self._reader) if self._figures is None else self._figures.written_ns

    def header(self, rank: int | None = None) -> Mapping[str, Any]:
        """Return facts about the process that recorded a rank, by name, such as versions and host.

        Where several processes recorded the rank, because the run was resumed, the facts are those
        of the last process. {} where no facts are stored, and for a run without ranks.

        rank: None is the lowest rank. Raises OptionError for an unknown rank.
        """
        reader = next(self._readers_of(rank), None)
        attempts = reader.catalogue.attempts if reader is not None else []
        return dict(attempts[-1].header) if attempts else {}

    def gaps(self, rank: int | None = None) -> list[Gap]:
        """Return what was observed and not recorded, or recorded without values; [] for nothing.

        There is a Gap for each name, kind, mode and reason, with the total.

        rank: None adds up all ranks. Raises OptionError for an unknown rank.
        """
        if rank is None and self._figures is not None:
            return list(self._figures.gaps)
        return summed_gaps(gap for reader in self._readers_of(rank) for gap in reader.gaps())

    def edges(self, rank: int | None = None) -> list[Edges]:
        """Return the lineage of one rank: from which anchored tensors each value was computed.

        The Edges come in the order in which they were recorded; [] for a run without ranks. From
        them `anchorlib.diagnosis.causes.Lineage` finds the parents of a record of any kind.

        rank: None is the lowest rank. Raises OptionError for an unknown rank.
        """
        reader = next(self._readers_of(rank), None)
        return list(reader.catalogue.edges.values()) if reader is not None else []

    def ops(
        self,
        stage: str | None = None,
        module: str | None = None,
        step: int | range | None = None,
        *,
        rank: int | None = None,
    ) -> list[Op]:
        """Return the traced operations, by rank, step and place in the step; [] for none.

        A step that was traced again after a resume has its last trace.

        stage: "forward", "recompute", "backward", "accumulate" or "optimizer"; None is all.
        module: the path of a module, or a glob for several; None is all.
        step: a step, or a range of steps; None is all.
        rank: None is all ranks.

        Raises OptionError for an unknown stage or rank, DamagedError for a damaged log.
        """
        ops = [op for reader in self._readers_of(rank) for op in self._traced(reader)]
        return select_ops(ops, stage, module, step)

    def op_gaps(self, rank: int | None = None) -> list[OpGap]:
        """Return what `session.trace` could not trace, and why; [] for nothing.

        rank: None is all ranks. Raises OptionError for an unknown rank, DamagedError for a damaged
            log of operations.
        """
        return [gap for one in self._readers_of(rank) for gap in gaps_of(one.operations())]

    def op_of(self, record: Record) -> Op | None:
        """Return the traced operation that computed the values of `record`, a record of this run.

        The operation is found by the digest of the values. None where the record's step was not
        traced, for records that no operation made (inputs, initial parameters, deltas), and for a
        record without values and summary. Raises DamagedError for a damaged log of operations.
        """
        if record.summary is not None:
            digest = record.summary.digest.hex()
        elif record.raw is not None:  # most records are read without their summary
            digest = digest_of(record.raw).hex()
        else:
            return None
        version = self._index(record.rank).version
        known = self._makers.get(record.rank)
        if known is None or known[0] != version:
            known = self._makers[record.rank] = version, RecordMakers(self.ops(rank=record.rank))
        return known[1].maker(
            *(record.name, record.kind, digest, record.shape),
            step=record.step,
            pass_index=record.pass_index,
        )

    def _traced(self, reader: RankReader) -> list[Op]:
        try:
            return read_entries(reader.operations(), reader.rank)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DamagedError(
                f"the log of operations of rank {reader.rank} of {self.name} is damaged: {error!r}"
            ) from error

    def rows(self, rank: int) -> tuple[RankReader, np.ndarray[Any, Any]]:
        """Return the store's reader of one rank, and its visible row numbers by execution order.

        Of rows that a resumed run recorded again, only the later ones are visible. For code that
        works on the columns of all series of the rank together. Raises OptionError where there is
        no such rank.
        """
        (reader,) = self._readers_of(rank)
        return reader, visible_rows(reader)

    def all_rows(self) -> list[tuple[RankReader, np.ndarray[Any, Any]]]:
        """Return (reader, visible row numbers by execution order) of each rank, ranks ascending.

        Of rows that a resumed run recorded again, only the later ones are visible. The run is
        searched for new rows once, before the first rank.
        """
        return [(reader, visible_rows(reader)) for reader in self._readers_of(None)]

    def tensors(self, *selectors: str) -> list[TensorInfo]:
        """Return the tensors of the run in order of execution: all, or those of some selectors.

        There is a TensorInfo for each name, kind and mode, over all ranks. Raises
        UnknownTensorError, with suggestions, for a selector that matches nothing.
        """
        infos = self._listing()
        if not selectors:
            return infos
        pairs = list(dict.fromkeys((info.name, info.kind) for info in infos))
        named = set(select(selectors, pairs, where=f" in {self.name}"))
        return [info for info in infos if (info.name, info.kind) in named]

    def __getitem__(self, selector: str) -> Series:
        """Return the one series that a selector names: `run["fc2.bias@grad"]`.

        Raises UnknownTensorError where the selector names none, AmbiguousTensorError with the
        choices where it names several, TypeError where it is not a str.
        """
        if not isinstance(selector, str):
            raise TypeError(f"a selector is text, as 'fc1.weight@grad', not {selector!r}")
        pairs = list(dict.fromkeys((info.name, info.kind) for info in self.tensors(selector)))
        if len(pairs) > 1:
            names = ", ".join(quoted(join(*pair)) for pair in pairs[:5])
            more = f" and {len(pairs) - 5} more" if len(pairs) > 5 else ""
            raise AmbiguousTensorError(
                f"{quoted(selector)} names {len(pairs)} tensors in {self.name}: {names}{more}"
            )
        return self.series(*pairs[0])

    def series(
        self,
        name: str,
        kind: str = "value",
        *,
        rank: int | None = None,
        mode: Mode | type[Mode] | str | None = None,
        attempts: bool = False,
    ) -> Series:
        """Return the series of a tensor and kind; rank and mode are needed where it has several.

        attempts: whether to include records that were recorded again after a resume.

        Raises UnknownTensorError where there is no such series, AmbiguousTensorError where there
        are several, ModeError for a `mode` that is none, OptionError where there is no such rank.
        """
        self._reader.refresh()
        if rank is not None:
            self._checked_rank(rank)
        wanted = None if mode is None else str(parse_mode(mode))
        candidates = self._find(name, kind, attempts=attempts)
        if not candidates:
            self.tensors(join(name, kind))
            raise UnknownTensorError(
                f"no tensor is named {quoted(join(name, kind))} in {self.name}"
            )
        chosen = [
            one
            for one in candidates
            if (rank is None or one.rank == rank) and (wanted is None or one.mode == wanted)
        ]
        if len(chosen) == 1:
            return chosen[0]
        have = ", ".join(
            f"rank={one.rank}, mode={quoted(one.mode)}" for one in chosen or candidates
        )
        if not chosen:
            raise UnknownTensorError(
                f"{quoted(join(name, kind))} in {self.name} was not recorded so; it has: {have}"
            )
        raise AmbiguousTensorError(
            f"{quoted(join(name, kind))} has {len(chosen)} series in {self.name}; take one with "
            f"run.series({name!r}, {kind!r}, rank=…, mode=…) of: {have}"
        )

    def histogram(self, selector: str, **where: Any) -> Log2Histogram:
        """Return one log2 histogram of all elements that a selector names, all ranks together.

        A selector without a kind means gradients: each name's `grad`, else its `pass_grad`; its
        first kind where no name has a gradient.

        where: arguments of `Series.where`, such as `steps=range(0, 10)`, which choose the records
            to count; also `rank` and `mode`, as in `histograms`.

        Raises UnknownTensorError for a selector that names nothing, AmbiguousTensorError for a
        tensor that was recorded in several modes: its elements would be counted twice.
        """
        return Log2Histogram.pooled(part.histogram for part in self.histograms(selector, **where))

    def histograms(
        self,
        selector: str,
        *,
        rank: int | None = None,
        mode: Mode | type[Mode] | str | None = None,
        **where: Any,
    ) -> list[TensorHistogram]:
        """Return the log2 histogram of each tensor and kind that a selector names.

        A tensor without a record that matches all arguments is left out; [] if all tensors are.

        selector, where: as in `histogram`, which also says what is raised.
        rank: None counts the records of all ranks together.
        mode: needed for a tensor that was recorded in several modes.
        """
        known = list(dict.fromkeys((info.name, info.kind) for info in self.tensors()))
        pairs = pairs_meant(selector, known, self.name)
        wanted = None if mode is None else str(parse_mode(mode))
        if self._figures is not None and rank is None and wanted is None and not where:
            return [histogram_of_figures(self.name, pair, self._figures) for pair in pairs]
        histograms = []
        for pair in pairs:
            series = [
                one
                for one in self._find(*pair)
                if (rank is None or one.rank == rank) and (wanted is None or one.mode == wanted)
            ]
            histograms.append(histogram_of_series(self.name, pair, series, where))
        return [part for part in histograms if part is not None]

    def to_pandas(self, *selectors: str) -> pd.DataFrame:
        """Return a DataFrame of tensors, with a row for each of `tensors(*selectors)`.

        Raises UnknownTensorError for a selector that matches nothing, MissingExtraError where
        pandas is not installed.
        """
        return run_frame(self.tensors(*selectors))

    def to_xarray(self, *selectors: str, rank: int | None = None) -> xarray.Dataset:
        """Return the values of one rank, with a variable for each tensor and kind: "fc1@grad".

        Tensors whose records have the same coordinates share the dimension "record" with `step`,
        `pass_index`, `call`, `phase` and `attempt` along it; tensors with other coordinates have
        "record_1" with `step_1`, and so on, so that no missing record has to be filled in. The
        dimensions of a tensor are named after its variable ("fc1@grad d0"). All values are read
        into memory: select what you need.

        rank: may be None only if a single rank has recorded.

        Raises what `Series.values` raises, UnknownTensorError for a selector that matches nothing,
        AmbiguousTensorError for several ranks without `rank`, OptionError where there is no such
        rank, and MissingExtraError where xarray is not installed.
        """
        return run_dataset(self, selectors, rank)

    def zarr(self) -> Store:
        """Return the run as a read-only zarr store, without copying anything.

        The group `rank<r>/tensors/<encoded name>/<kind>` opens with `zarr.open_group` and with
        `xarray.open_zarr(..., consolidated=False)`. Its array `value` has the shape (record,
        *tensor shape), with `step`, `pass_index` and `call` along the axis "record"; `value_1`,
        `value_2` and so on hold the records of further tensor shapes. The store has the records
        whose values were kept, as far as they exist now; of records that a resumed run recorded
        again, only the later ones.
        Values are read when zarr asks for them.
        """
        return as_zarr(tensor_tree(self.name, self.each_series()))

    def each_series(self, rank: int | None = None, *, attempts: bool = False) -> Iterator[Series]:
        """Yield all series of one rank or, with None, of each rank, rank by rank.

        With None, new records are looked for once. With a number, they are looked for only if the
        rank is not known yet, so that a caller may cheaply ask for one rank after the other. The
        rows of a rank are read when the iteration comes to it. Raises OptionError where there is no
        such rank, RunNotFoundError where a rank was removed before it was read.

        attempts: whether to include records that were recorded again after a resume.
        """
        ranks = self.ranks if rank is None else [self._checked_rank(rank)]
        for reader in self._reader.each_rank(ranks):
            index = self._indexes.of(reader, attempts=attempts)
            for entry in index.series:
                yield Series(index.reader, entry, index.rows(entry))

    def whole_series(self, info: TensorInfo) -> MergedSeries | None:
        """Return totals of one tensor, kind and mode over all ranks, from the run's index.

        None where the run has no index (only archived runs have one) or no such series.

        info: names the tensor, kind and mode.
        """
        if self._figures is None:
            return None
        key = (info.name, info.kind, info.mode)
        return next((one for one in self._figures.series if one.key == key), None)

    def digests(self) -> Mapping[int, RankDigests]:
        """Return the digests of an archived run's records, by rank; {} for other runs.

        They are hashes of the records of each range of steps: two runs are compared by them before
        any record is read. A rank without digests is left out: it is not sealed (made ready for an
        archive), or an older version sealed it.
        """
        return self._reader.digests()

    def by_step(self) -> StepFigures | None:
        """Return counts, extremes and histograms of each step of an archived run, over all ranks.

        One object of the archive is read. None for a run that is not archived, and for a run that
        an older version archived.
        """
        return self._reader.by_step()

    def refresh(self) -> None:
        """Look for newly committed records, as most other calls do by themselves.

        `each_series` of a rank that is known already does not look for them.
        """
        self._reader.refresh()

    def _find(self, name: str, kind: str, *, attempts: bool = False) -> list[Series]:
        """Return the series of a tensor and kind, one for each rank and mode; [] for none.

        New records are not looked for.

        attempts: whether to include records that were recorded again after a resume.
        """
        matches = []
        for rank in self._reader.ranks:
            index = self._index(rank, attempts=attempts)
            matches += [
                Series(index.reader, entry, index.rows(entry))
                for entry in index.of_tensor(name, kind)
            ]
        return matches

    @property
    def _figures(self) -> RunFigures | None:
        """Totals of all ranks from the index of an archived run; None for other runs."""
        return self._reader.figures

    def _listing(self) -> list[TensorInfo]:
        if self._figures is not None:
            return listed_figures(self._figures)
        self._reader.refresh()
        readers = [self._reader.rank(rank) for rank in self._reader.ranks]
        version = [(id(reader), reader.version) for reader in readers]
        if self._listed is None or self._listed[0] != version:
            self._listed = (version, listing(map(self._index, self._reader.ranks)))
        return list(self._listed[1])

    def _all(self) -> Iterator[RankIndex]:
        """Return an iterator over the index of each rank, that is, its row numbers by series.

        The run is searched for new records once, now; a rank is read when the iteration comes to
        it.
        """
        return map(self._indexes.of, self._readers_of(None))

    def _readers_of(self, rank: int | None) -> Iterator[RankReader]:
        """Look for new records once; return an iterator over the reader of a rank, or of all.

        rank: None is all ranks, in ascending order. A rank of an archived run is opened when the
            iteration comes to it. Raises OptionError where there is no such rank.
        """
        self._reader.refresh()
        ranks = self._reader.ranks if rank is None else [self._checked_rank(rank)]
        return self._reader.each_rank(ranks)

    def _index(self, rank: int, *, attempts: bool = False) -> RankIndex:
        return self._indexes.of(self._reader.rank(rank), attempts=attempts)

    def _checked_rank(self, rank: int) -> int:
        """Return `rank`; raise OptionError where it has recorded nothing up to now."""
        if rank not in self._reader.ranks and rank not in self.ranks:  # which looks for new ranks
            have = ", ".join(map(str, self._reader.ranks))
            raise OptionError(f"rank {rank} recorded nothing in {self.name}; there are: {have}")
        return rank

    def __repr__(self) -> str:
        return run_line(self)

    def _repr_html_(self) -> str:
        return run_html(self)
