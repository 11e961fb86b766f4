"""The page of some runs inside a notebook: the HTML of `anchor report`, in a frame."""

from __future__ import annotations

from collections.abc import Sequence

from anchorlib.diagnosis import Comparison, NotebookPage
from anchorlib.reading import Run
from anchorlib.report.rendering import page

__all__ = ["show"]


def show(
    *runs: Run, comparisons: Sequence[Comparison] | None = None, height: int = 900
) -> NotebookPage:
    """Return the page of these runs for a notebook to display; the first run is the reference.

    comparisons: those of the first run with each other run, in the order of `runs`; None for a page
    that compares nothing.
    height: how high the frame is, in pixels.
    """
    return NotebookPage(page(runs, comparisons), height)
