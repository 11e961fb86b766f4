"""Goes through everything that a run stores, and compares it with its checksums.

Every value is compared with the digest that was made where the value was captured; rows and
metadata are compared with their checksums. Each rank is read by itself, and each damage is noted,
so that no damage hides another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anchor_cli.verification.outcome import Damage, Verification
from anchorlib.progress import Progress

if TYPE_CHECKING:
    import numpy as np

    from anchorlib.store import FoundRun, RankAudit, RankReader

__all__ = ["verified"]

_BLOCK_BYTES = 16 << 20
_ROW = "the row does not fit its checksum"
_VALUES = "the values do not fit their digest"
_LABEL = "its step, pass or call beside the values are not those of its row"


def verified(stored_run: FoundRun, tick: Progress) -> Verification:
    """Reads every row and value of a run again, and compares them with their checksums.

    Damage is not raised but collected in the result, also where a whole rank cannot be read. A rank
    that cannot be read because sealing it (packing it into few objects, for an archive) was begun
    and not finished is passed over.

    tick: called with how many values of a rank were read, and how many it has.
    """
    from anchorlib.errors import RunNotFoundError, StoreError
    from anchorlib.store import (
        RankAudit,
        RankReader,
        end_copy,
        is_unfinished,
        listed_parts,
        run_faults,
    )

    report = Verification(stored_run.name, 0, 0, 0, 0, [], [])
    # Each rank is read by itself: a Run cannot be opened where one rank cannot be read.
    parts = listed_parts(stored_run.location)
    report.damaged += (
        Damage(parts[0][0], f"of the run: {one}") for one in run_faults(stored_run.location)
    )
    for rank, part in parts:
        try:
            reader = RankReader(stored_run.location, rank, part=part)
            audit = RankAudit(stored_run.location, reader)
        except (StoreError, RunNotFoundError) as error:
            if not is_unfinished(stored_run.location, rank, part):
                report.damaged.append(Damage(rank, str(error)))
            continue
        copied = end_copy(stored_run.location, stored_run.name, reader)
        if copied:
            report.copied[rank] = reader.left_out
        _verify_rank(reader, audit, report, tick)
    report.damaged += _unjoined(stored_run, [rank for rank, part in parts if part])
    return report


def _unjoined(stored_run: FoundRun, ranks: list[int]) -> list[Damage]:
    """Returns one damage where the parts of ranks do not fit together, such as for missing records.

    Returns [] where they fit, and where no rank lies in parts.

    ranks: the ranks that lie in several parts, because several collectors took them.
    """
    from anchorlib.errors import StoreError
    from anchorlib.store import RunReader

    if not ranks:
        return []
    try:
        RunReader(stored_run.location, stored_run.name).refresh()
    except StoreError as error:
        return [Damage(ranks[0], str(error))]
    return []


def _verify_rank(
    reader: RankReader, audit: RankAudit, report: Verification, tick: Progress
) -> None:
    from anchorlib.errors import StoreError

    report.records += reader.committed
    report.gaps += reader.gaps()
    # In a copy of a rank that was being written, metadata and labels are newer than the rows.
    copied = reader.rank in report.copied
    report.damaged += (Damage(reader.rank, one) for one in (() if copied else audit.faults()))
    known: set[str] = set()
    bad = _verify_rows(reader, audit, report, known)
    try:
        _verify_values(reader, bad, report, tick)
    except StoreError as error:  # a damaged column that is needed to find any value
        if str(error) not in known:
            report.damaged.append(Damage(reader.rank, str(error)))


def _verify_values(
    reader: RankReader, bad: list[int], report: Verification, tick: Progress
) -> None:
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
    reader: RankReader, audit: RankAudit, report: Verification, known: set[str]
) -> list[int]:
    """Compares all rows of a rank with their checksums, and adds damages to the report.

    Returns the numbers of damaged rows. New errors about unreadable files are added to `known`, so
    that no such error is reported twice.

    known: the texts of the errors about unreadable files that were reported already.
    """
    from anchorlib.errors import StoreError

    bad: list[int] = []
    for start, stop in audit.parts():
        try:
            checked = audit.rows(start, stop)
        except StoreError as error:
            if str(error) not in known:  # the next part of the rows may need the same missing file
                known.add(str(error))
                report.damaged.append(Damage(reader.rank, str(error)))
            continue
        report.unchecked += checked.unchecked
        report.damaged += (_damage(reader, row, _ROW) for row in checked.bad)
        if reader.rank not in report.copied:
            report.damaged += (_damage(reader, row, _LABEL) for row in checked.labels)
        bad += checked.bad
    return bad


def _parts(reader: RankReader, rows: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yields `rows` in batches of one dtype and shape, whose values take about 16 MiB.

    rows: row numbers of the rank's table; each of these rows has values.
    """
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


def _verify_part(reader: RankReader, rows: np.ndarray[Any, Any], report: Verification) -> int:
    """Compares the values of some rows with their digests, and adds damages to the report.

    Returns how many bytes of values could be read.

    rows: row numbers of the rank's table, all of one dtype and shape.
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


def _damage(reader: RankReader, row: int, reason: str) -> Damage:
    catalogue = reader.catalogue
    series = catalogue.series[int(reader.series_ids[row])]
    where = {name: _cell(reader, name, row) for name in ("step", "pass_index", "call", "attempt")}
    # Read as a span, because `column` refuses the whole column where one row's phase is damaged.
    phase = int(reader.span("phase", row, row + 1)[0])
    return Damage(
        rank=reader.rank,
        reason=reason,
        name=series.name,
        kind=series.kind,
        mode=series.mode,
        phase=catalogue.phases[phase] if phase < len(catalogue.phases) else None,
        **where,
    )


def _cell(reader: RankReader, name: str, row: int) -> int | None:
    """Returns the value of a column in a row; None where damage prevents reading it."""
    from anchorlib.errors import StoreError

    try:
        return int(reader.cell(name, row))
    except StoreError:
        return None
