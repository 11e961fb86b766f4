"""The page's HTML: style, script and data; a policy allows only these, by their hashes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from anchorlib.diagnosis import Comparison
from anchorlib.progress import Progress
from anchorlib.reading import Run
from anchorlib.report.comparison_view import ComparisonView, view_of_comparison
from anchorlib.report.document import document_text
from anchorlib.report.gathering import gather
from anchorlib.report.run_view import PageBudget, RunView

__all__ = ["assembled", "contrasted", "hashed", "page", "policy", "style", "write_page"]

SCRIPTS = (
    "document.js",
    "numbers.js",
    "elements.js",
    "palette.js",
    "plot.js",
    "heatmap.js",
    "curves.js",
    "exponents.js",
    "metrics.js",
    "overview.js",
    "tensor.js",
    "footprint.js",
    "cell.js",
    "lines.js",
    "multiples.js",
    "tables.js",
    "changes.js",
    "vicinity.js",
    "answer.js",
    "address.js",
    "main.js",
)
STYLES = ("page.css",)


def page(
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] | None = None,
    *,
    budget: PageBudget | None = None,
    progress: Progress | None = None,
) -> str:
    """Return one self-contained HTML page about `runs`; the first is the reference.

    comparisons: those of the first run with each other run, in the order of `runs`; None for a page
    that compares nothing.
    budget: limits on how much data goes into the page; None for the usual limits.
    progress: called with (number of series read, number of the run's series) for one run after the
    other, while histograms are counted.
    """
    budget = budget or PageBudget()
    views = [gather(run, budget=budget, progress=progress) for run in runs]
    contrasts = contrasted(views, comparisons or (), budget)
    return assembled([run.name for run in runs], document_text(views, contrasts))


def write_page(
    path: str | Path,
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] | None = None,
    *,
    budget: PageBudget | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the page to the file `path`, whole or not at all; other arguments as for `page`.

    An existing file is replaced. Raises OSError if the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    text = page(runs, comparisons, budget=budget, progress=progress)
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def contrasted(
    views: Sequence[RunView], comparisons: Sequence[Comparison], budget: PageBudget
) -> list[ComparisonView]:
    """Return the comparisons as the page draws them, in the same order.

    views: what the page shows of each run. comparisons: the comparisons of the first run with each
        other run, in the order of `views`; may be empty.
    """
    return [
        view_of_comparison(one, views[0], views[number], number, budget=budget)
        for number, one in enumerate(comparisons, 1)
    ]


def assembled(names: Sequence[str], data: str, *, served: bool = False) -> str:
    """Return the HTML of a page around the text of its data, as `document_text` returns it.

    names: the runs' names, for the title. served: whether the page may ask the server that it comes
    from for newer data.
    """
    title = escape(f"anchor: {' and '.join(names)}" if len(names) < 4 else "anchor: runs")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(served=served)}">'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{meta}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        "<noscript>This page draws with a script of its own; switch JavaScript on.</noscript>\n"
        f'<script type="text/plain" id="data">{data}</script>\n'
        f"<script>{_script()}</script>\n</body>\n</html>\n"
    )


def policy(*, served: bool = False) -> str:
    """Return the page's Content-Security-Policy: script and style by hash, no connections.

    served: whether the page may connect to the server that it comes from.
    """
    own = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src '{hashed(_script())}'; style-src '{hashed(style())}'; "
        f"connect-src {own}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def hashed(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def style() -> str:
    """Return the page's style sheet."""
    return "".join(_asset(name) for name in STYLES)


@cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f"(() => {{\n'use strict';\n{body}\n}})();\n"


def _asset(name: str) -> str:
    return files("anchorlib.report").joinpath("assets", name).read_text(encoding="utf-8")
