"""The page itself: our style, our script, the data; allowed by hash, and nothing else is."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

from anchorlib.diagnosis import Comparison
from anchorlib.reading import Run
from anchorlib.report.binning import BinCache
from anchorlib.report.contrasting import Contrast, contrast
from anchorlib.report.document import document_text
from anchorlib.report.gathering import gather
from anchorlib.report.values import Budget, RunView

__all__ = ["assembled", "document", "page", "policy", "write_page"]

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
    "cell.js",
    "lines.js",
    "tables.js",
    "answer.js",
    "main.js",
)
STYLES = ("page.css",)

Progress = Callable[[int, int], None]


def page(
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] | None = None,
    *,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> str:
    """One self-contained HTML page about `runs`; the first is the reference.

    comparisons: of the first run with each other one, in that order; None: without a verdict.
    progress: called with (done, all) while histograms are counted.
    """
    names = [run.name for run in runs]
    return assembled(
        names, document(runs, comparisons, budget=budget, progress=progress), live=False
    )


def write_page(
    path: str | Path,
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] | None = None,
    *,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the page to a file, whole or not at all. Raises OSError."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    text = page(runs, comparisons, budget=budget, progress=progress)
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def document(
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] | None = None,
    *,
    budget: Budget | None = None,
    caches: Sequence[BinCache] | None = None,
    progress: Progress | None = None,
    live: bool = False,
) -> str:
    """The data of a page, as its script reads it. caches: one a run, kept between calls."""
    budget = budget or Budget()
    own = caches or [BinCache() for _ in runs]
    views = [
        gather(run, budget=budget, cache=cache, progress=progress)
        for run, cache in zip(runs, own, strict=True)
    ]
    return document_text(views, _contrasts(views, comparisons or (), budget), live=live)


def _contrasts(
    views: Sequence[RunView], comparisons: Sequence[Comparison], budget: Budget
) -> list[Contrast]:
    return [
        contrast(one, views[0], views[number], number, budget=budget)
        for number, one in enumerate(comparisons, 1)
    ]


def assembled(names: Sequence[str], data: str, *, live: bool) -> str:
    """The HTML around a document; `live` pages may ask their own server for newer data."""
    title = escape(f"anchor: {' and '.join(names)}" if len(names) < 4 else "anchor: runs")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(live=live)}">'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{meta}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        "<noscript>This page draws with a script of its own; switch JavaScript on.</noscript>\n"
        f'<script type="text/plain" id="data">{data}</script>\n'
        f"<script>{_script()}</script>\n</body>\n</html>\n"
    )


def policy(*, live: bool) -> str:
    """The Content-Security-Policy: our script and style by hash, no address at all (or our own)."""
    own = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src '{_hash(_script())}'; style-src '{_hash(_style())}'; "
        f"connect-src {own}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _style() -> str:
    return "".join(_asset(name) for name in STYLES)


@cache
def _script() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f"(() => {{\n'use strict';\n{body}\n}})();\n"


def _asset(name: str) -> str:
    return files("anchorlib.report").joinpath("assets", name).read_text(encoding="utf-8")
