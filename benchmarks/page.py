"""How soon a browser shows a page of a million cells that it opens from disk.

python -m benchmarks page
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, figure
from benchmarks.timing import Ratio
from tests.page.browsing import CHROMIUM, browser_of, settled
from tests.page.large import large_page

ROUNDS = 5


def figures() -> Iterator[Figure]:
    """Seconds from the address to the last drawing; nothing where there is no Chromium."""
    if CHROMIUM is None:
        return
    with tempfile.TemporaryDirectory() as folder, browser_of(CHROMIUM) as browser:
        for runs, most in ((1, 3.0), (2, None)):
            html = large_page(runs=runs)
            path = Path(folder, f"{runs}.html")
            path.write_text(html, encoding="utf-8")
            seconds = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                visited = settled(browser, path.as_uri())
                seconds.append(time.perf_counter() - start)
                visited.close()
            what = f"page of {runs} × 1,000,000 cells, {len(html) / 1e6:.0f} MB"
            yield figure(what, Ratio.of(seconds), "s", at_most=most)
