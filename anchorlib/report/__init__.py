"""One page about one run or several: `anchor report`, `anchor ui`, `anchor compare --html`.

    Run ─gather─▶ RunView ────────┐
                                  ├─document─▶ text ─page─▶ one HTML file that fetches nothing
    Comparison ─▶ ComparisonView ─┘

Python counts and adds up; the page's own script (assets/) draws. Nothing of a run is sampled: where
a run has too many steps, adjacent steps share a column, their figures are added up, and the page
says so.
"""

from anchorlib.report.notebook import show
from anchorlib.report.rendering import page, write_page
from anchorlib.report.serving import Source, application

__all__ = ["Source", "application", "page", "show", "write_page"]
