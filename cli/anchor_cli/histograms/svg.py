"""Draws histograms as a small HTML page: inline SVG, no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import IO

from anchor_cli.histograms.format_limits import Limit
from anchor_cli.histograms.panel import BAR, Panel, Picture, color_of, ticks

__all__ = ["page", "write_html"]

_WIDTH, _HEIGHT = 560, 300
_RIGHT, _TOP, _BOTTOM = 12, 24, 46
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FLOOR = _HEIGHT - _BOTTOM
_DASHES = {"largest": "none", "smallest normal": "6 3", "smallest subnormal": "2 3"}
_STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; } h2 { font: 600 1rem ui-monospace, monospace; overflow-wrap: anywhere; }
section { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 1rem; }
figure, h2, ul { margin: 0; } svg { width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 12px; }
.axis { stroke: currentColor; opacity: .5; } .grid { stroke: currentColor; opacity: .12; }
ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; }
li svg { width: 32px; height: 8px; margin-right: .5rem; } p { opacity: .8; margin: .3rem 0; }
"""


def write_html(picture: Picture, file: IO[bytes]) -> None:
    """Writes the picture as an HTML page in UTF-8."""
    file.write(page(picture).encode())


def page(picture: Picture) -> str:
    """Returns the HTML page: a heading, a legend, and a figure for each panel.

    Escapes every text of the picture for HTML.
    """
    figures = "\n".join("\n".join(_figure(panel, picture)) for panel in picture.panels)
    heading = escape(picture.heading)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{heading}</title>\n<style>{_STYLE}</style>\n"
        f"<h1>{heading}</h1>\n{_legend(picture)}\n<section>\n{figures}\n</section>\n</html>\n"
    )


def _legend(picture: Picture) -> str:
    entries = [
        f'<li><svg viewBox="0 0 32 8">{_line("M0 4H32", limit)}</svg>{limit.label(_power)}</li>'
        for limit in picture.limits
    ]
    return f"<ul>{''.join(entries)}</ul>" if entries else ""


def _figure(panel: Panel, picture: Picture) -> Iterator[str]:
    title, scale = escape(panel.title), _Scale(panel, picture)
    yield f"<figure><h2>{title}</h2>{_notes(panel)}"
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
    yield from _grid(panel, scale)
    for exponent, count in panel.histogram.bins.items():
        yield _bar(scale, exponent, 1, count, BAR, f"{_power(exponent)}: {count:,}")
    for one in picture.apart(panel):
        yield _bar(
            scale,
            one.x - one.width / 2,
            one.width,
            one.count,
            one.color,
            f"{one.label}: {one.count:,}",
        )
        clipped = " ↑" if one.count > panel.top else ""
        yield _text(scale.x(one.x), scale.y(one.count) - 4, f"{one.count:,}{clipped}")
        yield _text(scale.x(one.x), _FLOOR + 16, one.label)
    for limit in picture.limits:
        yield _line(f"M{scale.x(limit.at):.1f} {_TOP}V{_FLOOR}", limit)
    yield f'<path class="axis" d="M{scale.left} {_FLOOR}H{_WIDTH - _RIGHT}"/>'
    for exponent in ticks(picture.lowest, picture.highest):
        yield _text(scale.x(exponent), _FLOOR + 16, _power(exponent))
    yield _text(_WIDTH / 2, _HEIGHT - 8, "magnitude, one bin a power of two")
    yield "</svg></figure>"


class _Scale:
    """Converts exponents and counts to coordinates of the SVG."""

    def __init__(self, panel: Panel, picture: Picture) -> None:
        self._first, self._panel = picture.left, panel
        self.left = 16 + 7 * len(f"{panel.top:,.0f}")  # room for the counts beside the axis
        self.unit = (_WIDTH - self.left - _RIGHT) / (picture.right - picture.left)

    def x(self, exponent: float) -> float:
        return self.left + (exponent - self._first) * self.unit

    def y(self, count: int) -> float:
        return _FLOOR - self._panel.height(count) / self._panel.top * (_FLOOR - _TOP)


def _grid(panel: Panel, scale: _Scale) -> Iterator[str]:
    step = _round_step(panel.top)
    for count in range(0, int(panel.top) + 1, step):
        y = scale.y(count)
        yield f'<path class="grid" d="M{scale.left} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield _text(scale.left - 6, y + 4, f"{count:,}", "end")


def _round_step(top: float) -> int:
    """Returns the distance between grid lines: 1, 2 or 5 times a power of ten.

    It is the smallest such distance that fits at most five times into `top`, the height of the
    axis.
    """
    step = 1
    while top / step > 5:
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step


def _line(path: str, limit: Limit) -> str:
    title = limit.label(_power)
    return (
        f'<path d="{path}" stroke="{color_of(limit)}" stroke-width="1.5" '
        f'stroke-dasharray="{_DASHES[limit.end]}"><title>{title}</title></path>'
    )


def _bar(scale: _Scale, x: float, width: float, count: int, color: str, title: str) -> str:
    y = scale.y(count)
    return (
        f'<rect x="{scale.x(x):.1f}" y="{y:.1f}" width="{max(scale.unit * width - 1, 0.5):.1f}" '
        f'height="{_FLOOR - y:.1f}" fill="{color}"><title>{escape(title)}</title></rect>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _notes(panel: Panel) -> str:
    return "".join(f"<p>{escape(note)}</p>" for note in panel.notes)


def _power(exponent: int) -> str:
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"
