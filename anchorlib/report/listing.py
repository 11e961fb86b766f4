"""The page that lists a store's runs and the ranks that are being written now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from anchorlib.amounts import in_units
from anchorlib.names import escape as visible
from anchorlib.report.rendering import hashed, style

if TYPE_CHECKING:
    from anchorlib.upkeep import Writing

__all__ = ["ago", "list_page", "list_policy", "query_of"]


def query_of(names: Sequence[str]) -> str:
    """Return the query string of the page of these runs, such as "run=a&run=b"."""
    return urlencode([("run", name) for name in names])


def list_policy() -> str:
    """Return the Content-Security-Policy of the list: no script, a form for this server alone."""
    return (
        f"default-src 'none'; style-src '{hashed(style())}'; img-src data:; base-uri 'none'; "
        "form-action 'self'"
    )


def ago(time_ns: int) -> str:
    """Return how long ago a time was, such as "3 days ago"; "just now" for less than a minute.

    time_ns: nanoseconds since 1970.
    """
    seconds = max(time.time() - time_ns / 1e9, 0.0)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def list_page(names: Mapping[str, str], writings: Sequence[Writing]) -> str:
    """Return the HTML of the list of runs: a click shows a run, ticking several compares them.

    names: {name of a run: a text about the run}. writings: the ranks that are being written now.
    """
    rows = "\n".join(
        f'<li><label><input type="checkbox" name="run" value="{escape(name)}"> '
        f'<a href="/view?{escape(query_of([name]))}"><code>{escape(name)}</code></a></label> '
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
        f'<meta http-equiv="Content-Security-Policy" content="{list_policy()}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n<title>anchor: runs</title>\n'
        f"<style>{style()}</style>\n</head>\n<body>\n<header><h1>anchor</h1></header>\n<main>"
        f'<section aria-label="Runs"><h2>Runs</h2>{body}</section>'
        f"{_written(writings)}</main>\n</body>\n</html>\n"
    )


def _written(writings: Sequence[Writing]) -> str:
    """Return the HTML of a table of the ranks that are being written; "" if there are none."""
    if not writings:
        return ""
    heads = "".join(f'<th scope="col">{title}</th>' for title in _TITLES)
    rows = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(one))}</tr>"
        for one in writings
    )
    return (
        '<section aria-label="Who writes now"><h2>Who writes now</h2>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Ranks that are written">'
        f'<table class="origins"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</section>"
    )


_TITLES = ("run", "rank", "host", "since", "records/s", "bytes/s", "lag", "backlog", "last seen")


def _cells(one: Writing) -> list[str]:
    rates = (one.records_per_second, one.bytes_per_second)
    return [
        visible(one.run),
        str(one.rank),
        "–" if one.host is None else visible(one.host),
        "–" if one.since_ns is None else ago(one.since_ns),
        "–" if rates[0] is None else f"{rates[0]:.1f}",
        "–" if rates[1] is None else in_units(round(rates[1])),
        "–" if one.lag is None else f"{one.lag:.1f} s",
        "–" if one.backlog is None else str(one.backlog),
        "–" if one.last_seen_ns is None else ago(one.last_seen_ns),
    ]
