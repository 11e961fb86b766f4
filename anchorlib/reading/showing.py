"""What a Run and a Series print at a Python prompt (`repr`) and in a notebook (HTML)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from anchorlib.amounts import in_units
from anchorlib.errors import AnchorError
from anchorlib.names import escape
from anchorlib.reading.tables import html_table, html_text

if TYPE_CHECKING:
    from anchorlib.reading.readable import ReadableRun, ReadableSeries

__all__ = ["run_html", "run_line", "series_html", "series_line"]

ROWS = 20
ENDS = 5
FIGURES = ("min", "max", "l2")
COUNTS = ("zero", "nan", "inf")
TENSOR_HEADS = ("tensor", "kind", "mode", "dtype", "shape", "records", "steps", "size", "gaps")
RECORD_HEADS = ("", "step", "pass", "call", *FIGURES, *COUNTS)


def run_line(run: ReadableRun) -> str:
    """Return the `repr` of a run; where the run cannot be read, the line says so.

    `Run('run1', closed: 42 records of 6 tensors, 1 rank, steps 0-2, 1.2 MiB)`
    """
    try:
        return f"Run({run.name!r}, {_state(run)}: {_holdings(run)})"
    except AnchorError as error:  # as when a collector is gone: a repr should not raise
        return f"Run({run.name!r}, cannot be read now: {escape(str(error))})"


def series_line(series: ReadableSeries) -> str:
    """Return the `repr` of a series.

    `Series(fc1@grad (mode all, rank 0), float32 10x4, steps 0-2, 3 records)`
    """
    return f"Series({series}, {', '.join([*_contents(series), _counted(len(series), 'record')])})"


def run_html(run: ReadableRun) -> str:
    """Return the HTML that a notebook shows for a run: its `repr` and up to 20 of its tensors."""
    infos = run.tensors()
    rows = [
        (
            *(info.name, info.kind, info.mode, info.dtype, _shape(info.shape), info.records),
            *(_span(info.first_step, info.last_step), in_units(info.bytes), info.gaps or ""),
        )
        for info in infos[:ROWS]
    ]
    more = f"and {len(infos) - ROWS:,} more: .tensors(), .to_pandas()"
    return _page(run_line(run), html_table(TENSOR_HEADS, rows), more if len(infos) > ROWS else "")


def series_html(series: ReadableSeries) -> str:
    """Return the HTML that a notebook shows for a series: its `repr` and a table of records.

    Of more than ten records the table has the first five and the last five.
    """
    total = len(series)
    places = list(range(total))
    if total > 2 * ENDS:
        places = [*range(ENDS), *range(total - ENDS, total)]
    columns = {name: series.columns[name] for name in ("step", "pass_index", "call")}
    figures = {name: series.columns[name] for name in (*FIGURES, *COUNTS)}
    rows = [
        (
            at,
            *(int(column[at]) for column in columns.values()),
            *(f"{figures[name][at]:.4g}" for name in FIGURES),
            *(int(figures[name][at]) for name in COUNTS),
        )
        for at in places
    ]
    hidden = total - len(places)
    more = f"{hidden:,} records between them: .columns, .values(), .to_pandas()" if hidden else ""
    return _page(series_line(series), html_table(RECORD_HEADS, rows), more)


def _page(title: str, table: str, more: str) -> str:
    parts = [
        f"<p><b>{html_text(title)}</b></p>",
        table,
        f"<p>{html_text(more)}</p>" if more else "",
    ]
    return "<div>\n{}\n</div>".format("\n".join(filter(None, parts)))


def _state(run: ReadableRun) -> str:
    if run.state == "closed":
        return "closed"
    return {True: "live", False: "left open", None: "open"}[run.live]


def _holdings(run: ReadableRun) -> str:
    infos = run.tensors()
    pairs = {(info.name, info.kind) for info in infos}
    records = sum(info.records for info in infos)
    parts = [
        f"{_counted(records, 'record')} of {_counted(len(pairs), 'tensor')}",
        _counted(len(run.ranks), "rank"),
    ]
    if infos:
        parts.append(
            _steps(min(i.first_step for i in infos), max(i.last_step for i in infos)),
        )
    parts.append(in_units(sum(info.bytes for info in infos)))
    if missing := sum(gap.count for gap in run.gaps()):
        parts.append(f"{missing:,} not recorded or without values")
    return ", ".join(parts)


def _contents(series: ReadableSeries) -> Iterator[str]:
    if not len(series):
        return
    dtypes, shapes = dict.fromkeys(series.dtypes), dict.fromkeys(series.shapes)
    same = len(shapes) == 1
    yield f"{'|'.join(dtypes)} {_shape(next(iter(shapes))) if same else 'of several shapes'}"
    steps = series.columns["step"]
    yield _steps(int(steps.min()), int(steps.max()))
    odd = [(name, int(series.columns[name].sum())) for name in ("nan", "inf")]
    yield from (f"{count:,} {name}" for name, count in odd if count)


def _shape(shape: Iterable[int | None] | None) -> str:
    if shape is None:
        return "?"
    return "x".join("?" if extent is None else str(extent) for extent in shape) or "()"


def _steps(first: int, last: int) -> str:
    return f"step{'' if first == last else 's'} {_span(first, last)}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
