"""The page served and kept fresh: `anchor ui`, over Starlette.

    GET /                   the list of runs and writers, or a redirect to the command line's runs
    GET /view?run=a&run=b   the page of these runs
    GET /data?run=…&have=T  the page's data, if it is newer than tag T; 204 where it is not

The application only reads. It refuses a request whose Host is not one that it serves: a foreign web
page could point its own name at this machine and read the answers. A request names runs of the
store, never a path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchorlib.amounts import in_units
from anchorlib.errors import AnchorError, CollectorError, MissingExtraError, RunNotFoundError
from anchorlib.names import escape as visible
from anchorlib.names import quoted
from anchorlib.report.following import Followed
from anchorlib.report.listing import ago, list_page, list_policy, query_of
from anchorlib.report.rendering import assembled, policy

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from anchorlib.diagnosis import Comparison
    from anchorlib.reading import Run
    from anchorlib.upkeep import Writing

__all__ = ["Source", "application"]

SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MOST_PAGES = 8  # documents kept in memory; the least recently asked for is dropped


@dataclass(frozen=True, slots=True)
class Source:
    """Where the served pages get their runs from: functions that are called for each page.

    listed: returns the names of the store's runs.
    alone: returns {run: archive}, by name, for the runs whose files are only in an archive.
    opened: opens and returns the run of a name from `listed` or from the command line.
    compared: returns the comparisons of the first of the given runs with each of the others.
    writings: returns the ranks that are being written now.
    """

    listed: Callable[[], Sequence[str]]
    alone: Callable[[], Mapping[str, str]]
    opened: Callable[[str], Run]
    compared: Callable[[Sequence[Run]], list[Comparison]]
    writings: Callable[[], Sequence[Writing]]


def application(source: Source, *, hosts: Sequence[str], shown: Sequence[str] = ()) -> Starlette:
    """Return the web application that serves the pages.

    hosts: the values that a Host header may have, with the port, such as "127.0.0.1:8787".
    shown: the names of the runs whose page `/` redirects to; if empty, `/` lists all runs.
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
    site = _Site(source, tuple(shown))
    return Starlette(
        routes=[Route("/", site.index), Route("/view", site.view), Route("/data", site.data)],
        middleware=[Middleware(_OwnHosts, hosts=hosts)],
    )


class _OwnHosts:
    """Middleware that passes on only requests with an allowed Host; others get status 421."""

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
    """The handlers of the three requests: the list of runs, a page, and a page's newer data.

    They are plain functions, which Starlette runs in threads: counting histograms takes long and
    must not keep other requests waiting.
    """

    def __init__(self, source: Source, shown: tuple[str, ...]) -> None:
        self._source = source
        self._shown = shown
        self._pages: dict[tuple[str, ...], Followed] = {}
        self._lock = threading.Lock()

    def index(self, request: Request) -> Response:  # noqa: ARG002 - every answer takes one
        from starlette.responses import RedirectResponse

        if self._shown:
            return RedirectResponse(f"/view?{query_of(self._shown)}", 303, headers=SAFE)
        try:
            alone = self._alone()
            about = {name: self._about(name, alone.get(name, "")) for name in self._source.listed()}
            return _html(list_page(about, self._written()), list_policy())
        except AnchorError as error:
            return _refused(error)

    def _written(self) -> Sequence[Writing]:
        """Return the ranks that are being written now; () if finding them fails.

        The list of runs is worth showing without them.
        """
        try:
            return self._source.writings()
        except AnchorError:
            return ()

    def _alone(self) -> Mapping[str, str]:
        """Return {run: archive}, by name, for the runs whose files are only in an archive.

        The result is {} if finding them fails: the list of runs is worth showing without archives.
        """
        try:
            return self._source.alone()
        except AnchorError:
            return {}

    def _about(self, name: str, archive: str) -> str:
        """Return a run's size, age and archive as text, for the list of runs.

        For a run that cannot be read, the text says so instead; the run's own page says why.
        archive: the archive, if the run's files are only there; else "".
        """
        only = f"only in {visible(archive)}" if archive else ""
        try:
            run = self._source.opened(name)
            size_and_age = f"{in_units(run.bytes)}, last written {ago(run.written_ns)}"
        except AnchorError:
            size_and_age = "cannot be read now"
        return ", ".join(filter(None, (size_and_age, only)))

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
        """Return the names of the runs that a request asks for, and the data of their page.

        Raises RunNotFoundError if the request names no run, or a run that is neither in the store
        nor among those of the command line.
        """
        names = tuple(request.query_params.getlist("run"))
        with self._lock:
            known = {*self._shown, *(() if set(names) <= {*self._shown} else self._source.listed())}
            unknown = [name for name in names if name not in known]
            if unknown or not names:
                what = f"no run is named {quoted(unknown[0])}" if unknown else "no run is asked for"
                raise RunNotFoundError(f"{what} here: go to / for the list of runs")
            page = self._pages.pop(names, None) or Followed(
                [self._source.opened(name) for name in names],
                self._source.compared,
                f"data?{query_of(names)}",
            )
            self._pages[names] = page
            for old in list(self._pages)[:-MOST_PAGES]:
                del self._pages[old]
        return names, page


def _html(text: str, allowed: str) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(text, headers={**SAFE, "Content-Security-Policy": allowed})


def _refused(error: AnchorError) -> Response:
    from starlette.responses import PlainTextResponse

    codes: Mapping[type, int] = {RunNotFoundError: 404, CollectorError: 503}
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), 500)
    return PlainTextResponse(f"anchor: {error}", code, headers=SAFE)
