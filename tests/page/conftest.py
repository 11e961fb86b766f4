"""One browser for all tests of the page: Debian's Chromium, offline."""

from __future__ import annotations

import contextlib

import pytest
from playwright.sync_api import Error

from tests.page.browsing import CHROMIUM, browser_of, settled
from tests.slow import left_out, marked_slow

# Browsers are started.
pytest_itemcollected, pytest_ignore_collect = marked_slow, left_out


@pytest.fixture(scope="package")  # no longer: while it runs, so does an event loop
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(browser_of(CHROMIUM))
        except Error as error:
            pytest.skip(f"{CHROMIUM} does not start: {error}")
        yield started


@pytest.fixture
def visit(browser, tmp_path):
    """Open a page's HTML from disk; at the end nothing may have gone wrong in any."""
    pages = []

    def go(html, **options):
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html, encoding="utf-8")
        visited = settled(browser, path.as_uri(), **options)
        pages.append(visited)
        return visited

    yield go
    for one in pages:
        one.close()
