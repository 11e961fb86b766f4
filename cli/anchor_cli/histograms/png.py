"""Draws histograms as PNG, with matplotlib: a panel for each tensor, counts over exponents."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping
from typing import IO, Any, Literal

from anchor_cli.histograms.panel import BAR, BesideAxis, Panel, Picture, color_of, ticks
from anchor_cli.terminal import cut
from anchorlib.errors import MissingExtraError

__all__ = ["write_png"]

_WIDTH, _HEIGHT = 5.2, 3.5  # inches of each panel
_LINES: Mapping[str, Literal["-", "--", ":"]] = {
    "largest": "-",
    "smallest normal": "--",
    "smallest subnormal": ":",
}
_QUIET = "#4a5568"
_TITLE_LENGTH, _NOTE_LENGTH = 52, 80  # characters that fit over a panel
_LINE, _CLIPPED = 11, 16  # points: the height of a line of notes, and of a clipped bar's label


def write_png(picture: Picture, file: IO[bytes]) -> None:
    """Draws the panels in a grid and writes them as PNG.

    Raises MissingExtraError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "a PNG needs matplotlib: pip install 'anchorlib[plot]', or write FILE.html instead"
        ) from None
    count = len(picture.panels)
    columns = min(count, 3 if count > 4 else 2)
    rows = math.ceil(count / columns)
    # Not pyplot: that would choose a windowing backend and keep the figure alive.
    figure = Figure(figsize=(max(columns * _WIDTH, 8), rows * _HEIGHT + 1), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, axis in zip(picture.panels, axes, strict=False):
        _draw(panel, picture, axis)
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.suptitle(picture.heading, parse_math=False, fontsize=12, fontweight="bold")
    _legend(picture, figure)
    with warnings.catch_warnings():
        # A name may hold characters that the font lacks: drawing them as boxes is enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(file, dpi=144, format="png")


def _draw(panel: Panel, picture: Picture, axis: Any) -> None:
    bins = panel.histogram.bins
    heights = [panel.height(count) for count in bins.values()]
    middles = [exponent + 0.5 for exponent in bins]
    axis.bar(middles, heights, width=0.92, color=BAR)
    for one in picture.apart(panel):
        _draw_apart(one, panel, axis)
    for limit in picture.limits:
        style = _LINES[limit.end]
        axis.axvline(limit.at, color=color_of(limit), linestyle=style, linewidth=1.3)
    at = ticks(picture.lowest, picture.highest)
    apart = picture.apart(panel)
    axis.set_xticks(
        [*at, *(one.x for one in apart)],
        [*(f"$2^{{{e}}}$" for e in at), *(one.label for one in apart)],
    )
    axis.set(xlim=(picture.left, picture.right), ylim=(0, panel.top), ylabel="elements")
    axis.set_xlabel("magnitude, one bin a power of two", fontsize=8, color=_QUIET)
    _write_heads(panel, axis)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.locator_params(axis="y", integer=True, nbins=6)


def _write_heads(panel: Panel, axis: Any) -> None:
    """Writes the title and the notes of a panel above it, with room for labels of clipped bars."""
    lines = [line for note in panel.notes for line in textwrap.wrap(note, _NOTE_LENGTH)]
    title = cut(panel.title, _TITLE_LENGTH)
    pad = _CLIPPED + _LINE * len(lines)
    axis.set_title(title, parse_math=False, fontsize=10, family="monospace", pad=pad)
    for number, line in enumerate(reversed(lines)):
        axis.annotate(
            line,
            (0.5, 1.0),
            xycoords="axes fraction",
            xytext=(0, _CLIPPED + _LINE * number),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_QUIET,
            parse_math=False,
            # Without this the layout would shrink the panel to make room for a wide line.
            in_layout=False,
        )


def _draw_apart(one: BesideAxis, panel: Panel, axis: Any) -> None:
    height = panel.height(one.count)
    axis.bar([one.x], [height], width=one.width, color=one.color, hatch="//", edgecolor="white")
    axis.annotate(
        f"{one.count:,}" + (" ↑" if one.count > panel.top else ""),
        (one.x, height),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        annotation_clip=False,
    )


def _legend(picture: Picture, figure: Any) -> None:
    """Adds a legend to the figure, with an entry for each limit of a number format."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=color_of(limit),
            linestyle=_LINES[limit.end],
            label=limit.label("$2^{{{}}}$".format),
        )
        for limit in picture.limits
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
