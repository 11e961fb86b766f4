"""`anchor verify`: checks everything that a run stores.

Every value is compared with the digest that was made where the value was captured; rows and
metadata are compared with their checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from anchor_cli.arguments import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.exits import ExitCode
from anchor_cli.progress import Tick, progress
from anchor_cli.terminal import Screen, counted, document, emit, size, this_screen

if TYPE_CHECKING:
    import numpy as np

    from anchorlib.record import Gap
    from anchorlib.store import FoundRun, RankAudit, RankReader

__all__ = ["EXAMPLES", "Report", "verified", "verify_run"]

EXAMPLES = examples("anchor verify run1", "anchor verify grpc://127.0.0.1:50051/run1 --json")

_BLOCK_BYTES = 16 << 20
_FIGURES = ("run", "records", "values", "bytes", "unchecked")
_SHOWN = 20  # damaged values that are listed; --json names all


def verify_run(
    run: RunArgument, *, store: StoreOption = "anchors", as_json: JsonOption = False
) -> int:
    """Read every stored value and row again, and compare it with its checksum.

    Exit code 1 where a value or row does not fit, else 3 where observations were not recorded, else
    0.
    """
    from anchorlib.store import find_run

    stored_run = find_run(run, store)
    with progress(f"verifying {stored_run.name}") as tick:
        report = verified(stored_run, tick)
    if as_json:
        document(report.as_json())
    else:
        emit(report.lines(this_screen()))
    return report.code


_ROW = "the row does not fit its checksum"
_VALUES = "the values do not fit their digest"
_LABEL = "its step, pass or call beside the values are not those of its row"


@dataclass(frozen=True, slots=True)
class _Damage:
    """A damage that was found, with the reason in words.

    It is of one record (its row, values or labels), or of a rank as a whole: then name, kind and
    the fields after them are None.
    """

    rank: int
    reason: str
    name: str | None = None
    kind: str | None = None
    mode: str | None = None
    step: int | None = None
    pass_index: int | None = None
    call: int | None = None
    phase: str | None = None
    attempt: int | None = None

    def line(self) -> str:
        """Returns the line that is printed: which record or rank is damaged, and how."""
        from anchorlib.names import escape, join

        if self.name is None or self.kind is None:
            return f"rank {self.rank}: {escape(self.reason)}"
        mode = escape(self.mode or "")
        return (
            f"{escape(join(self.name, self.kind))} ({mode}) rank {self.rank} step {self.step} "
            f"pass {self.pass_index} call {self.call}: {escape(self.reason)}"
        )


@dataclass(slots=True)
class Report:
    """The result of verifying a run.

    records: the number of committed records, each of which has a row in its rank's table.
    values: the number of records whose values are kept; bytes: the size of these values.
    unchecked: rows without a checksum, written by an older version.
    copied: for each rank that was copied while it was written, the number of rows left out because
        they were copied in part.
    """

    run: str
    records: int
    values: int
    bytes: int
    unchecked: int
    damaged: list[_Damage]
    gaps: list[Gap]
    copied: dict[int, int] = field(default_factory=dict)

    @property
    def code(self) -> ExitCode:
        """The exit code: 1 where something is damaged, else 3 where there are gaps, else 0."""
        if self.damaged:
            return ExitCode.DIFFERENCE
        return ExitCode.INCOMPLETE if self.gaps else ExitCode.DONE

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON document."""
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "damaged": [asdict(one) for one in self.damaged],
            "gaps": [asdict(gap) for gap in self.gaps],
            "copied": [{"rank": rank, "left_out": rows} for rank, rows in self.copied.items()],
        }

    def lines(self, screen: Screen) -> Iterator[str]:
        """Yields the lines to print: damages first, then gaps, the sum last."""
        from anchorlib.names import escape, join

        yield from (one.line() for one in self.damaged[:_SHOWN])
        if len(self.damaged) > _SHOWN:
            yield f"and {len(self.damaged) - _SHOWN} more: --json names them all"
        for gap in self.gaps[:_SHOWN]:
            steps = f"steps {gap.first_step}-{gap.last_step}"
            what = escape(join(gap.name, gap.kind))
            yield f"{what} lacks {gap.count} of {steps}: {escape(gap.reason)}"
        for rank, rows in self.copied.items():
            yield (
                f"rank {rank}: a copy of a run that was being written, up to its last commit; "
                f"{counted(rows, 'row')} written during the copy left out"
            )
        if self.unchecked:
            yield f"{self.unchecked} rows were made without checksums: only their values were read"
        unit = "" if screen.human else " bytes"
        verdict = f"{len(self.damaged)} damaged" if self.damaged else "all fit their digests"
        missing = f"; {sum(gap.count for gap in self.gaps)} not recorded" if self.gaps else ""
        yield (
            f"{self.run}: {self.values} values ({size(self.bytes, screen)}{unit}) "
            f"of {self.records} records: {verdict}{missing}"
        )


def verified(stored_run: FoundRun, tick: Tick) -> Report:
    from anchorlib.errors import RunNotFoundError, StoreError
    from anchorlib.store import (
        RankAudit,
        RankReader,
        end_copy,
        is_unfinished,
        listed_parts,
        run_faults,
    )

    report = Report(stored_run.name, 0, 0, 0, 0, [], [])
    # Each rank is read by itself: a Run cannot be opened where one rank cannot be read.
    parts = listed_parts(stored_run.location)
    report.damaged += (
        _Damage(parts[0][0], f"of the run: {one}") for one in run_faults(stored_run.location)
    )
    for rank, part in parts:
        try:
            reader = RankReader(stored_run.location, rank, part=part)
            audit = RankAudit(stored_run.location, reader)
        except (StoreError, RunNotFoundError) as error:
            if not is_unfinished(stored_run.location, rank, part):
                report.damaged.append(_Damage(rank, str(error)))
            continue
        copied = end_copy(stored_run.location, stored_run.name, reader)
        if copied:
            report.copied[rank] = reader.left_out
        _verify_rank(reader, audit, report, tick)
    report.damaged += _unjoined(stored_run, [rank for rank, part in parts if part])
    return report


def _unjoined(stored_run: FoundRun, ranks: list[int]) -> list[_Damage]:
    """Returns the damage where records are missing between the parts of a rank; [] for none.

    ranks: the ranks that lie in several parts, because several collectors took them.
    """
    from anchorlib.errors import StoreError
    from anchorlib.store import RunReader

    if not ranks:
        return []
    try:
        RunReader(stored_run.location, stored_run.name).refresh()
    except StoreError as error:
        return [_Damage(ranks[0], str(error))]
    return []


def _verify_rank(reader: RankReader, audit: RankAudit, report: Report, tick: Tick) -> None:
    from anchorlib.errors import StoreError

    report.records += reader.committed
    report.gaps += reader.gaps()
    # In a copy of a rank that was being written, metadata and labels are newer than the rows.
    copied = reader.rank in report.copied
    report.damaged += (_Damage(reader.rank, one) for one in (() if copied else audit.faults()))
    known: set[str] = set()
    bad = _verify_rows(reader, audit, report, known)
    try:
        _verify_values(reader, bad, report, tick)
    except StoreError as error:  # a damaged column that is needed to find any value
        if str(error) not in known:
            report.damaged.append(_Damage(reader.rank, str(error)))


def _verify_values(reader: RankReader, bad: list[int], report: Report, tick: Tick) -> None:
    import numpy as np

    # A damaged row is skipped: it says wrongly where its values are, or whether there are any.
    every = np.setdiff1d(np.arange(reader.committed), bad)
    rows = every[reader.kept(every)]
    report.values += len(rows)
    done = 0
    for part in _parts(reader, rows):
        report.bytes += _verify_part(reader, part, report)
        done += len(part)
        tick(done, len(rows))


def _verify_rows(
    reader: RankReader, audit: RankAudit, report: Report, known: set[str]
) -> list[int]:
    """Compares all rows of a rank with their checksums, and adds damages to the report.

    Returns the numbers of damaged rows. known: gets the texts of errors of unreadable files, so
    that none is reported twice.
    """
    from anchorlib.errors import StoreError

    bad: list[int] = []
    for start, stop in audit.parts():
        try:
            checked = audit.rows(start, stop)
        except StoreError as error:
            if str(error) not in known:  # the next part of the rows may need the same missing file
                known.add(str(error))
                report.damaged.append(_Damage(reader.rank, str(error)))
            continue
        report.unchecked += checked.unchecked
        report.damaged += (_damage(reader, row, _ROW) for row in checked.bad)
        if reader.rank not in report.copied:
            report.damaged += (_damage(reader, row, _LABEL) for row in checked.labels)
        bad += checked.bad
    return bad


def _parts(reader: RankReader, rows: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Splits row numbers into batches of one dtype and shape whose values take about 16 MiB."""
    import numpy as np

    numbers = reader.column("form")[rows]
    for number in np.unique(numbers):
        own = rows[numbers == number]
        form = reader.catalogue.forms[int(number)]
        count = 1
        if form.shape is not None:
            one = int(np.prod(form.shape, dtype=np.int64)) * _itemsize(form.dtype)
            count = max(_BLOCK_BYTES // max(one, 1), 1)
        yield from (own[start : start + count] for start in range(0, len(own), count))


def _itemsize(dtype: str) -> int:
    from anchorlib.dtypes import dtype as named

    return named(dtype).storage.itemsize


def _verify_part(reader: RankReader, rows: np.ndarray[Any, Any], report: Report) -> int:
    """Compares the values of some rows with their digests, and adds damages to the report.

    Returns the bytes of values that could be read.
    """
    from anchorlib.errors import StoreError

    try:
        if len(rows) == 1:
            stack = reader.unchecked(int(rows[0]))[None]
        else:
            stack = reader.unchecked_stack(rows)
    # A damaged shape or place makes numpy raise one of the last three.
    except (StoreError, ValueError, OverflowError, MemoryError) as error:
        if len(rows) > 1:  # to find the damaged one, each is read by itself
            return sum(_verify_part(reader, rows[[at]], report) for at in range(len(rows)))
        report.damaged.append(_damage(reader, int(rows[0]), str(error)))
        return 0
    unfit = rows[reader.unfit(rows, stack)].tolist()
    report.damaged += (_damage(reader, row, _VALUES) for row in unfit)
    return int(stack.nbytes)


def _damage(reader: RankReader, row: int, reason: str) -> _Damage:
    catalogue = reader.catalogue
    series = catalogue.series[int(reader.series_ids[row])]
    where = {name: _cell(reader, name, row) for name in ("step", "pass_index", "call", "attempt")}
    # Read as a span, because `column` refuses the whole column where one row's phase is damaged.
    phase = int(reader.span("phase", row, row + 1)[0])
    return _Damage(
        rank=reader.rank,
        reason=reason,
        name=series.name,
        kind=series.kind,
        mode=series.mode,
        phase=catalogue.phases[phase] if phase < len(catalogue.phases) else None,
        **where,
    )


def _cell(reader: RankReader, name: str, row: int) -> int | None:
    """Returns the value of a column in a row; None where it cannot be read, being damaged."""
    from anchorlib.errors import StoreError

    try:
        return int(reader.cell(name, row))
    except StoreError:
        return None
