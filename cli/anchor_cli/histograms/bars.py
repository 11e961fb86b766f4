"""Draws a log2 histogram as text: a row for each exponent, the largest on top.

Zeros, NaN and infinities have rows below:

       2^-13       3   0.6 %  #
    ------ fp16, e5m2 smallest normal 2^-14 ------
       2^-15     240  48.0 %  #########################

        zero      12   2.4 %  ##

On a terminal the bars have a resolution of an eighth of a column; elsewhere they are ASCII.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchor_cli.histograms.format_limits import Limit, limits_within
from anchor_cli.terminal import Screen

if TYPE_CHECKING:
    from anchorlib.summary import Log2Histogram

__all__ = ["bar", "drawn", "percent", "strip"]

_MOST_ROWS = 64
_PLAIN_WIDTH = 80
_EIGHTHS = " ▏▎▍▌▋▊▉"
_CYAN, _RED, _DIM, _YELLOW = 36, 31, 2, 33


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    count: int
    style: int
    lowest: int | None = None  # the row's lowest exponent; None for zero, NaN and Inf


def drawn(
    histogram: Log2Histogram, formats: Sequence[str], screen: Screen, *, scale: float = 1.0
) -> Iterator[str]:
    """Yields the lines of one histogram, with the limits of number formats between its rows.

    formats: short names of the formats whose limits are drawn, such as "fp16".
    scale: the factor by which values are multiplied before they would be stored in these formats.
    """
    axis = _axis(histogram)
    apart = [
        _Row("zero", histogram.zero, _YELLOW),
        _Row("NaN", histogram.nan, _RED),
        _Row("Inf", histogram.inf, _RED),
    ]
    layout = _Layout(axis, apart, histogram, screen)
    for above, row in zip([None, *axis], axis, strict=False):
        if above is not None and above.lowest is not None and row.lowest is not None:
            between = limits_within(formats, row.lowest, above.lowest, scale)
            yield from map(layout.limit, between)
        yield layout.line(row)
    if axis:
        yield ""
    yield from (layout.line(row) for row in apart)


def _axis(histogram: Log2Histogram) -> list[_Row]:
    """Returns a row for each exponent, from the largest counted exponent to the smallest.

    Where these are more than 64 exponents, each row stands for the same number of exponents.
    Returns [] where no exponent was counted.
    """
    if not histogram.bins:
        return []
    lowest, highest = min(histogram.bins), max(histogram.bins)
    per_row = -(-(highest - lowest + 1) // _MOST_ROWS)
    rows = []
    for start in range(lowest, highest + 1, per_row):
        covered = range(start, start + per_row)
        label = f"2^{start}" if per_row == 1 else f"2^{start}..{covered[-1]}"
        count = sum(histogram.bins.get(exponent, 0) for exponent in covered)
        rows.append(_Row(label, count, _CYAN, start))
    return rows[::-1]


class _Layout:
    """Column widths and the scale of the bars, which all rows of one histogram share.

    axis: the rows of exponents. apart: the rows of zeros, NaN and infinities below them.
    """

    def __init__(
        self, axis: list[_Row], apart: list[_Row], histogram: Log2Histogram, screen: Screen
    ) -> None:
        rows = [*axis, *apart]
        self.screen = screen
        self.numel = histogram.numel
        self.label = max(7, *(len(row.label) for row in rows))
        self.count = max(6, *(len(f"{row.count:,}") for row in rows))
        # Bars are scaled to the tallest bin: many zeros must not flatten the shape of the rest.
        self.tallest = max((row.count for row in axis), default=0) or max(row.count for row in rows)
        self.width = screen.width or _PLAIN_WIDTH
        self.bar = max(8, self.width - self.label - self.count - 14)

    def line(self, row: _Row) -> str:
        length = row.count / self.tallest if self.tallest else 0.0
        drawing = self.screen.style(bar(length, self.bar, self.screen), row.style)
        share = percent(row.count, self.numel) if row.count else ""
        text = f"{row.label:>{self.label}}  {row.count:>{self.count},}  {share:>7}  {drawing}"
        return text.rstrip()

    def limit(self, limit: Limit) -> str:
        """Returns a line across the picture that marks the limit of a number format."""
        dash = "─" if self.screen.glyphs else "-"
        text = f"{dash * 4} {limit.label('2^{}'.format)} "
        return self.screen.style(text + dash * max(4, self.width - len(text)), _DIM)


def bar(length: float, width: int, screen: Screen) -> str:
    """Returns a bar as text.

    A bar longer than 1 is cut and ends in an arrow; any length above 0 shows at least a mark.

    length: the bar's length as a share of `width` columns; 1 fills them.
    """
    if length > 1:
        return ("█" if screen.glyphs else "#") * (width - 1) + ("▶" if screen.glyphs else ">")
    if not screen.glyphs:
        return "#" * max(round(length * width), 1 if length else 0)
    eighths = max(round(length * width * 8), 1 if length else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def percent(part: int | float, whole: int | float = 1) -> str:
    """Formats the share that `part` is of `whole` in percent, such as "48.0 %".

    "0 %" is written only for exactly 0 or where `whole` is 0, "100.0 %" only for exactly all.
    """
    if not whole or not part:
        return "0 %"
    share = 100 * part / whole
    if share < 0.05:
        return "<0.1 %"
    if share > 99.95 and part != whole:
        return ">99.9 %"
    return f"{share:.1f} %"


def strip(histogram: Log2Histogram, lowest: int, highest: int, room: int, screen: Screen) -> str:
    """Returns a histogram as a text of at most `room` marks: the higher a mark, the more elements.

    Each mark stands for the same number of exponents.

    lowest, highest: the exponents with which the axis begins and ends.
    """
    ramp = " ▁▂▃▄▅▆▇█" if screen.glyphs else " .:-=+*#@"
    each = -(-(highest - lowest + 1) // room)
    counts = [
        sum(histogram.bins.get(exponent, 0) for exponent in range(start, start + each))
        for start in range(lowest, highest + 1, each)
    ]
    tallest = max(counts, default=0) or 1
    heights = [max(round(n * (len(ramp) - 1) / tallest), 1 if n else 0) for n in counts]
    return "".join(ramp[height] for height in heights)
