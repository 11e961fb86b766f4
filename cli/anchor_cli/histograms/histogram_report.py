"""The answer of `anchor hist` as text, JSON and CSV, and as the picture for PNG and HTML."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from anchor_cli.histograms.bars import drawn, percent, strip
from anchor_cli.histograms.measured import MeasuredHistogram, NarrowFormat, measured, pooled
from anchor_cli.histograms.panel import Panel, Picture
from anchor_cli.histograms.png import write_png
from anchor_cli.histograms.svg import write_html
from anchor_cli.records import SelectedRecords, write_rows
from anchor_cli.terminal import Column, Screen, counted, plain, steps_of, written
from anchorlib.names import escape, join
from anchorlib.reading import MapFunction
from anchorlib.summary import FORMATS, scales_for

__all__ = ["WRITERS", "HistogramReport"]

_MOST_PANELS = 12
_COLUMNS = [
    Column("tensor", cut=True, main=True),
    Column("elements", right=True),
    Column("zero", right=True),
    Column("nan", right=True),
    Column("inf", right=True),
]
_STRIP = 24  # the least width of a strip on a narrow terminal


@dataclass(frozen=True, slots=True)
class HistogramReport:
    """What `anchor hist` answers: the histograms of the selected records.

    whole: the histogram of all selected records together.
    parts: a histogram for each tensor and kind.
    dtypes: the dtypes of the tensors. A value counted as subnormal is so in its tensor's dtype.
    target: the format of `--as`; None without that option.
    """

    whole: MeasuredHistogram
    parts: Sequence[MeasuredHistogram]
    dtypes: Sequence[str]
    target: NarrowFormat | None

    @classmethod
    def of(
        cls,
        chosen: Sequence[SelectedRecords],
        run: str,
        selectors: Sequence[str],
        target: NarrowFormat | None,
        over: MapFunction = map,
    ) -> HistogramReport:
        """Counts the histograms of the selected records and returns the answer.

        run: the run's name.
        selectors: the selectors of tensors as the user gave them, which name the pooled histogram.
        target: the format of `--as`; None without that option.
        over: the map function by which blocks of records are counted.
        """
        parts = measured(chosen, run, target, over)
        dtypes = list(dict.fromkeys(one.info.dtype for one in chosen))
        return cls(pooled(parts, selectors), parts, dtypes, target)

    @property
    def formats(self) -> list[str]:
        """The number formats whose limits are marked: that of `--as`, else all known formats."""
        return list(FORMATS) if self.target is None else [self.target.fmt]

    @property
    def scale(self) -> float:
        """The factor of `--scale`, by which values are multiplied before they meet the limits."""
        return 1.0 if self.target is None else self.target.scale

    def document(self) -> dict[str, object]:
        """Returns the JSON document: the histogram of all records together.

        With several tensors, its entry `parts` lists a histogram for each of them.
        """
        whole = self.whole.document(self.target)
        if len(self.parts) == 1:
            return whole
        return {**whole, "parts": [part.document(self.target) for part in self.parts]}

    def rows(self) -> Iterator[tuple[str, str, str, int]]:
        """Yields the rows of the CSV: tensor, kind, bin, and the count of elements in the bin.

        A bin is an exponent, or "zero", "nan" or "inf".
        """
        for part in self.parts:
            histogram = part.histogram
            apart = {"zero": histogram.zero, "nan": histogram.nan, "inf": histogram.inf}
            for label, count in (*histogram.bins.items(), *apart.items()):
                yield part.tensor, part.kind or "", str(label), count

    def lines(self, screen: Screen) -> Iterator[str]:
        """Yields the lines to print: counts and bars of all records, then a line for each tensor.

        The lines for tensors are left out where there is only one tensor.
        """
        yield screen.style(f"{self.whole.run}  {self._title}", 1)
        yield _figures(self.whole)
        yield from self._remarks(self.whole)
        yield from self._suggestion()
        yield ""
        yield from drawn(self.whole.histogram, self.formats, screen, scale=self.scale)
        if len(self.parts) > 1:
            yield ""
            yield from self._each(screen)

    def picture(self) -> Picture:
        """Returns a picture with a panel for each tensor.

        Where there are more than 12 tensors, it has a single panel for all of them together.
        """
        titled = [(_name(part), part) for part in self.parts]
        if len(titled) > _MOST_PANELS:
            titled = [(self._title, self.whole)]
        panels = [
            Panel(title, [_figures(part), *self._remarks(part)], part.histogram)
            for title, part in titled
        ]
        when = steps_of(self.whole.first_step, self.whole.last_step)
        heading = f"{self.whole.run}, {when}: elements in each power of two"
        return Picture(heading, panels, self.formats, self.scale)

    @property
    def _title(self) -> str:
        if len(self.parts) == 1:
            return _name(self.whole)
        return f"{escape(self.whole.tensor)} ({len(self.parts)} tensors pooled)"

    def _remarks(self, part: MeasuredHistogram) -> Iterator[str]:
        histogram, shares = part.histogram, part.shares
        if histogram.subnormal:
            share = percent(histogram.subnormal, histogram.numel)
            dtypes = escape(" or ".join(self.dtypes))
            yield f"{histogram.subnormal:,} ({share}) subnormal in {dtypes}"
        if shares is not None:
            about = "" if shares.exact else ", estimated where a limit falls inside a bin"
            yield (
                f"as {self.target}: {percent(shares.underflow)} underflow to zero, "
                f"{percent(shares.subnormal_as)} subnormal, "
                f"{percent(shares.overflow)} overflow{about}"
            )

    def _suggestion(self) -> Iterator[str]:
        """Yields with `--as` a line that suggests the scales at which the fewest elements are lost.

        Nothing is yielded without --as, or where no scale can be suggested.
        """
        if self.target is None:
            return
        suggested = scales_for(self.whole.histogram, self.target.fmt)
        if suggested is None:
            return
        scales = f"scales 2^{suggested.low} to 2^{suggested.high}"
        if suggested.low == suggested.high:
            scales = f"scale 2^{suggested.high}"
        overflow = "no overflow"
        if infinite := self.whole.histogram.inf:
            are = "element is" if infinite == 1 else "elements are"
            overflow = f"no further overflow ({infinite:,} {are} infinite at any scale)"
        yield f"suggested {scales}: {overflow}, least underflow ({percent(suggested.underflow)})"

    def _each(self, screen: Screen) -> Iterator[str]:
        """Yields a line for each tensor: its counts, and its histogram as a row of marks.

        The marks of all lines share one axis of exponents. A line with column titles comes first.
        """
        bins = self.whole.histogram.bins
        lowest, highest = min(bins, default=0), max(bins, default=0)
        cells = [_cells(part) for part in self.parts]
        room = highest - lowest + 1
        if screen.width is not None:
            taken = sum(max(len(row[i]) for row in cells) + 2 for i in range(len(_COLUMNS)))
            room = max(_STRIP, screen.width - taken)
        strips = [strip(part.histogram, lowest, highest, room, screen) for part in self.parts]
        columns = [*_COLUMNS, Column(f"2^{lowest}..2^{highest}")]
        rows = [(*row, one) for row, one in zip(cells, strips, strict=True)]
        yield from written(columns, rows, screen)


def _cells(part: MeasuredHistogram) -> tuple[str, ...]:
    histogram = part.histogram
    counts = (histogram.numel, histogram.zero, histogram.nan, histogram.inf)
    return (_name(part), *(f"{count:,}" for count in counts))


def _name(part: MeasuredHistogram) -> str:
    return escape(part.tensor if part.kind is None else join(part.tensor, part.kind))


def _figures(part: MeasuredHistogram) -> str:
    figures = (
        steps_of(part.first_step, part.last_step),
        counted(part.records, "record"),
        counted(part.histogram.numel, "element"),
        f"{percent(part.histogram.zero, part.histogram.numel)} zero",
    )
    return ", ".join(figures)


def _write_json(answer: HistogramReport, file: IO[bytes]) -> None:
    file.write(json.dumps(plain(answer.document()), allow_nan=False).encode() + b"\n")


def _write_csv(answer: HistogramReport, file: IO[bytes]) -> None:
    text = io.StringIO(newline="")
    write_rows(text, [["tensor", "kind", "bin", "count"], *answer.rows()])
    file.write(text.getvalue().encode())


WRITERS: Mapping[str, Callable[[HistogramReport, IO[bytes]], None]] = {
    ".png": lambda answer, file: write_png(answer.picture(), file),
    ".html": lambda answer, file: write_html(answer.picture(), file),
    ".csv": _write_csv,
    ".json": _write_json,
}
"""For each suffix of the output file the function that writes it."""
