"""`anchor status`: who writes now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import JsonOption, StoreOption, examples, not_empty
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import (
    Column,
    Screen,
    age,
    document,
    emit,
    moment,
    note,
    size,
    this_screen,
    written,
)

if TYPE_CHECKING:
    from anchorlib.upkeep import Writing

__all__ = ["EXAMPLES", "show_status"]

EXAMPLES = examples("anchor status", "anchor status grpc://127.0.0.1:50051 --json")

_COLUMNS = [
    Column("run", cut=True, main=True),
    Column("rank", right=True),
    Column("host", cut=True, spare=2),
    Column("since", spare=1),
    Column("records/s", right=True),
    Column("bytes/s", right=True),
    Column("lag", right=True),
    Column("backlog", right=True),
    Column("seen", spare=1),
]


def show_status(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE",
            help="A directory or grpc://HOST:PORT, instead of --store.",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    *,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Say who writes into a store now: each rank that a living process holds.

    Rates are those of the last minute, the lag is the time from a record to its commit, and the
    backlog what waits in the spool, in records. Only a collector knows these; of a directory a dash
    stands for them. Of several collectors those that answer are shown, and the others named.
    """
    from anchorlib.names import escape
    from anchorlib.upkeep import archived_lines

    place = where if where is not None else store
    writings, away = _asked(place)
    if as_json:
        document([_document(one) for one in writings])
    elif writings:
        emit(_table(writings, this_screen()))
    elif not away:
        note(f"nobody writes into {escape(place)} now")
    if not away:
        for text in archived_lines(place):
            note(text)
    for problem in away:
        note(problem)
    return ExitCode.COLLECTOR if away else ExitCode.DONE


def _asked(place: str) -> tuple[list[Writing], list[str]]:
    """Who writes, and what is wrong with those who could not be asked, if somebody could."""
    from anchorlib.errors import CollectorError
    from anchorlib.upkeep import keepers_at

    found: list[Writing] = []
    away: list[CollectorError] = []
    keepers = keepers_at(place)
    for keeper in keepers:
        try:
            found += keeper.writings()
        except CollectorError as error:
            away.append(error)
    if len(away) == len(keepers):
        raise away[0]
    return sorted(found, key=lambda one: (one.run, one.rank)), [str(error) for error in away]


def _document(one: Writing) -> dict[str, object]:
    return {
        "run": one.run,
        "rank": one.rank,
        "host": one.host,
        "since": _iso(one.since_ns),
        "records_per_second": one.records_per_second,
        "bytes_per_second": one.bytes_per_second,
        "lag": one.lag,
        "backlog": one.backlog,
        "last_seen": _iso(one.last_seen_ns),
    }


def _iso(time_ns: int | None) -> str | None:
    return None if time_ns is None else moment(time_ns, Screen())


def _table(writings: Sequence[Writing], screen: Screen) -> Iterator[str]:
    return written(_COLUMNS, [_cells(one, screen) for one in writings], screen)


def _cells(one: Writing, screen: Screen) -> list[str]:
    from anchorlib.names import escape

    return [
        escape(one.run),
        str(one.rank),
        "-" if one.host is None else escape(one.host),
        "-" if one.since_ns is None else age(one.since_ns, screen),
        _rate(one.records_per_second, screen),
        "-" if one.bytes_per_second is None else size(round(one.bytes_per_second), screen),
        _seconds(one.lag, screen),
        "-" if one.backlog is None else str(one.backlog),
        "-" if one.last_seen_ns is None else age(one.last_seen_ns, screen),
    ]


def _rate(rate: float | None, screen: Screen) -> str:
    if rate is None:
        return "-"
    if not screen.human:
        return f"{rate:.6g}"
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _seconds(seconds: float | None, screen: Screen) -> str:
    """A short time with its unit for people, in seconds for programs."""
    if seconds is None:
        return "-"
    if not screen.human:
        return f"{seconds:.3f}"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    for unit, size_of in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_of:
            return f"{seconds / size_of:.0f} {unit}"
    return f"{seconds:.1f} s"
