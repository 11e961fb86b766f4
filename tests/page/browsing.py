"""Pages in a browser: what they asked for, what went wrong, what they say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def browser_of(executable: str) -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


class Visited:
    """A page that has drawn itself."""

    def __init__(self, page: Page, requests: list[str], troubles: list[str]) -> None:
        self.page = page
        self.requests = requests
        self.troubles = troubles

    def card(self, name: str) -> Locator:
        """A section by its heading."""
        return self.page.get_by_role("region", name=name, exact=True)

    def drawing(self, card: str) -> Locator:
        """The drawing in a section."""
        return self.card(card).get_by_role("application").first

    def said(self, card: str) -> str:
        """What its drawing says of the cell that was moved to."""
        return self.card(card).locator(".now").first.text_content() or ""

    def close(self) -> None:
        """Fails where anything went wrong."""
        self.page.context.close()
        assert self.troubles == []


def settled(browser: Browser, address: str, *, offline: bool = True, **options: Any) -> Visited:
    """Go there and wait until all is drawn. options: of a browser's context."""
    settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, **options}
    context = browser.new_context(offline=offline, **settings)
    page = context.new_page()
    requests: list[str] = []
    troubles: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
    page.goto(address)
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    return Visited(page, requests, troubles)
