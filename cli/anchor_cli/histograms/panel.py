"""The geometry of a picture of histograms, by which both the PNG and the SVG are drawn.

x: exponents, one unit for each bin, the same axis for every panel of a picture;
   the bar of zeros is on the left of the axis, NaN and Inf are on the right
y: counts, scaled to the tallest bin; a taller bar beside the axis is clipped and marked
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchor_cli.histograms.format_limits import Limit, limits_within

if TYPE_CHECKING:
    from anchorlib.summary import Log2Histogram

__all__ = ["BAR", "BesideAxis", "Panel", "Picture", "color_of", "ticks"]

BAR = "#2b6cb0"
_ZERO, _BAD = "#b7791f", "#c53030"
_COLORS = {"fp16": "#c05621", "bf16": "#6b46c1", "e4m3": "#2f855a", "e5m2": "#97266d"}

_MARGIN = 1  # empty bins on each side of the data, so that a limit there is seen
_NARROWEST = 14  # the least number of exponents: three fat bars are no picture
_HEADROOM = 1.12
_SEEN = 1 / 150  # the least height of a bar, as a share of the panel's height


@dataclass(frozen=True, slots=True)
class BesideAxis:
    """A bar beside the axis of exponents, for zeros, NaN or infinities.

    x, width: the bar's middle and its width; the width of one exponent's bin is the unit.
    count: for how many elements the bar stands.
    """

    label: str
    x: float
    width: float
    count: int
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One histogram of a picture, with its title and the lines of text above it (notes)."""

    title: str
    notes: Sequence[str]
    histogram: Log2Histogram

    @property
    def top(self) -> float:
        """The number of elements at the panel's upper edge, where the y axis ends."""
        histogram = self.histogram
        tallest = max(histogram.bins.values(), default=0)
        return _HEADROOM * (tallest or max(histogram.zero, histogram.nan, histogram.inf, 1))

    def height(self, count: int) -> float:
        """Returns the height of a bar for `count` elements, on the panel's axis of counts.

        The height is the count itself, but at most `top`, the upper edge of the panel, and at least
        so much that the bar can be seen. It is 0.0 for no elements.
        """
        return min(max(count, _SEEN * self.top), self.top) if count else 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels under one heading, which share one axis of exponents.

    formats: the number formats whose limits are marked in each panel.
    scale: the factor by which values are multiplied before they would be stored in these formats.
    """

    heading: str
    panels: Sequence[Panel]
    formats: Sequence[str]
    scale: float = 1.0

    @property
    def lowest(self) -> int:
        """The lowest exponent on the axis."""
        return self._span[0]

    @property
    def highest(self) -> int:
        """The highest exponent on the axis."""
        return self._span[1]

    @property
    def _span(self) -> tuple[int, int]:
        exponents = [e for panel in self.panels for e in panel.histogram.bins] or [0]
        lowest, highest = min(exponents) - _MARGIN, max(exponents) + _MARGIN
        more = max(0, _NARROWEST - (highest - lowest))
        return lowest - more // 2, highest + more - more // 2

    @property
    def limits(self) -> list[Limit]:
        """The limits of the number formats that lie on the axis, the largest first."""
        return limits_within(self.formats, self.lowest, self.highest + 1, self.scale)

    @property
    def _gap(self) -> float:
        """The distance between the axis and the bars beside it, in units of the axis."""
        return max(2.0, (self.highest - self.lowest) / 14)

    def apart(self, panel: Panel) -> list[BesideAxis]:
        """Returns the bars beside the axis of a panel: for zeros always, for NaN and Inf if needed.

        NaN has a bar in every panel if any panel has such elements, and so has Inf.
        """
        gap, histogram = self._gap, panel.histogram
        bars = [BesideAxis("zero", self.lowest - gap, gap / 2, histogram.zero, _ZERO)]
        x = self.highest + 1 + gap
        if any(p.histogram.nan for p in self.panels):
            bars.append(BesideAxis("NaN", x, gap / 2, histogram.nan, _BAD))
            x += 1.5 * gap
        if any(p.histogram.inf for p in self.panels):
            bars.append(BesideAxis("Inf", x, gap / 2, histogram.inf, _BAD))
        return bars

    @property
    def left(self) -> float:
        """The x coordinate of the picture's left edge, in units of the axis."""
        return self.lowest - 2 * self._gap

    @property
    def right(self) -> float:
        """The x coordinate of the picture's right edge, in units of the axis."""
        return max(self.highest + 1.0, self.apart(self.panels[0])[-1].x + self._gap)


def color_of(limit: Limit) -> str:
    """Returns the colour of a limit, such as "#c05621": the colour of its first format."""
    return _COLORS.get(limit.formats[0], "#c05621")


def ticks(lowest: int, highest: int, most: int = 9) -> list[int]:
    """Returns the exponents to label the axis with, at most `most` from `lowest` to `highest`.

    They are the multiples of a round number, such as 5 or 10.
    """
    span = highest - lowest
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if span < most * step)
    return [x for x in range(lowest, highest + 1) if x % step == 0]
