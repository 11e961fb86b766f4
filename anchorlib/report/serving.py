"""The page served and kept fresh: `anchor ui`, over Starlette.

    GET /                   the runs of the store, or straight to the runs that were asked for
    GET /view?run=a&run=b   their page
    GET /data?run=…&have=T  its data, newer than tag T; 204 where there is nothing newer

Read only. What is asked for under another Host than our own (a web page that points its own name
at this machine) is refused; runs are those of the store, never a path that a request names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from anchorlib.errors import AnchorError, CollectorError, MissingExtraError, RunNotFoundError
from anchorlib.names import quoted
from anchorlib.report.following import Followed
from anchorlib.report.rendering import assembled, hashed, policy, style

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from anchorlib.diagnosis import Comparison
    from anchorlib.reading import Run

__all__ = ["application"]

Opener = Callable[[str], "Run"]
Comparer = Callable[[Sequence["Run"]], "list[Comparison]"]

SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MOST_PAGES = 8  # kept fresh at a time; the least recently seen is forgotten


def application(
    listed: Callable[[], Sequence[str]],
    opened: Opener,
    compared: Comparer,
    *,
    hosts: Sequence[str],
    shown: Sequence[str] = (),
) -> Starlette:
    """The web application.

    listed: the runs there are; opened: one of them (or of `shown`); compared: the first with each.
    hosts: what a Host header may say, with the port ("127.0.0.1:8787").
    shown: what `/` goes to; none: a list of all runs.
    Raises MissingExtraError where Starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtraError(
            "anchor ui needs starlette and uvicorn: pip install 'anchorlib[report]'"
        ) from error
    site = _Site(listed, opened, compared, tuple(shown))
    return Starlette(
        routes=[Route("/", site.index), Route("/view", site.view), Route("/data", site.data)],
        middleware=[Middleware(_OwnHosts, hosts=hosts)],
    )


class _OwnHosts:
    """Answers only what was asked for under one of our own names."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = {host.lower().encode() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import PlainTextResponse

        if scope["type"] == "http":
            asked = [value.lower() for name, value in scope["headers"] if name == b"host"]
            if len(asked) != 1 or asked[0] not in self._hosts:
                refusal = PlainTextResponse("this Host is not served here", 421, headers=SAFE)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Site:
    """The three answers. They run in threads: counting must not keep other answers waiting."""

    def __init__(
        self,
        listed: Callable[[], Sequence[str]],
        opened: Opener,
        compared: Comparer,
        shown: tuple[str, ...],
    ) -> None:
        self._listed = listed
        self._opened = opened
        self._compared = compared
        self._shown = shown
        self._pages: dict[tuple[str, ...], Followed] = {}
        self._lock = threading.Lock()

    def index(self, request: Request) -> Response:  # noqa: ARG002 - every answer takes one
        from starlette.responses import RedirectResponse

        if self._shown:
            return RedirectResponse(f"/view?{_query(self._shown)}", 303, headers=SAFE)
        try:
            names = self._listed()
            return _html(_list_page({name: self._about(name) for name in names}), _list_policy())
        except AnchorError as error:
            return _refused(error)

    def _about(self, name: str) -> str:
        """How big a run is, and how old; nothing of one that cannot be read, which opening says."""
        try:
            run = self._opened(name)
            return f"{_amount(run.bytes)}, last written {_ago(run.written_ns)}"
        except AnchorError:
            return ""

    def view(self, request: Request) -> Response:
        try:
            names, followed = self._followed(request)
            return _html(assembled(names, followed.latest("")[0], served=True), policy(served=True))
        except AnchorError as error:
            return _refused(error)

    def data(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse
        from starlette.responses import Response as Empty

        have = request.query_params.get("have", "")
        try:
            text, tag = self._followed(request)[1].latest(have)
        except AnchorError as error:
            return _refused(error)
        return (
            Empty(status_code=204, headers=SAFE)
            if tag == have
            else PlainTextResponse(text, headers=SAFE)
        )

    def _followed(self, request: Request) -> tuple[tuple[str, ...], Followed]:
        """What keeps the asked runs fresh. Raises RunNotFoundError for what is not shown here."""
        names = tuple(request.query_params.getlist("run"))
        with self._lock:
            known = {*self._shown, *(() if set(names) <= {*self._shown} else self._listed())}
            unknown = [name for name in names if name not in known]
            if unknown or not names:
                what = quoted(unknown[0]) if unknown else "nothing"
                raise RunNotFoundError(f"no run is named {what} here: go to / for those there are")
            page = self._pages.pop(names, None) or Followed(
                [self._opened(name) for name in names], self._compared, f"data?{_query(names)}"
            )
            self._pages[names] = page
            for old in list(self._pages)[:-MOST_PAGES]:
                del self._pages[old]
        return names, page


def _query(names: Sequence[str]) -> str:
    return urlencode([("run", name) for name in names])


def _html(text: str, allowed: str) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(text, headers={**SAFE, "Content-Security-Policy": allowed})


def _refused(error: AnchorError) -> Response:
    from starlette.responses import PlainTextResponse

    codes: Mapping[type, int] = {RunNotFoundError: 404, CollectorError: 503}
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), 500)
    return PlainTextResponse(f"anchor: {error}", code, headers=SAFE)


def _list_policy() -> str:
    return (
        f"default-src 'none'; style-src '{hashed(style())}'; img-src data:; base-uri 'none'; "
        "form-action 'self'"
    )


def _amount(nbytes: int) -> str:
    """As 12.3 MiB."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _ago(time_ns: int) -> str:
    """As 3 days ago."""
    seconds = max(time.time() - time_ns / 1e9, 0.0)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def _list_page(names: Mapping[str, str]) -> str:
    """The runs there are: one click shows one, ticking several compares them."""
    rows = "\n".join(
        f'<li><label><input type="checkbox" name="run" value="{escape(name)}"> '
        f'<a href="/view?{escape(_query([name]))}"><code>{escape(name)}</code></a></label> '
        f"{escape(about)}</li>"
        for name, about in names.items()
    )
    body = (
        f'<form action="/view"><ul class="list">{rows}</ul>'
        "<p>The first that is ticked is the reference.</p>"
        "<button>show the ticked runs on one page</button></form>"
        if names
        else "<p>No run has been recorded here yet.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_list_policy()}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n<title>anchor: runs</title>\n'
        f"<style>{style()}</style>\n</head>\n<body>\n<header><h1>anchor</h1></header>\n<main>"
        f'<section aria-label="Runs"><h2>Runs</h2>{body}</section></main>\n</body>\n</html>\n'
    )
