"""`anchor status`: shows who writes into a store now, or which closed runs are archived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

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
    from anchorlib.upkeep import ArchiveState, Keeper, Writing

__all__ = ["EXAMPLES", "show_status"]

EXAMPLES = examples(
    "anchor status",
    "anchor status grpc://127.0.0.1:50051 --json",
    "anchor status grpc://127.0.0.1:50051 --archives",
)

T = TypeVar("T")

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
    archives: Annotated[
        bool,
        typer.Option(
            "--archives",
            help="Show instead which closed runs are archived, which wait, and which could not be "
            "archived, and why.",
        ),
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Show who writes into a store now: each rank that a living process holds.

    Rates are averages of the last minute; the lag is the time from a record to its commit; the
    backlog is the number of records that wait in the spool. Only a collector knows these figures:
    for a directory each is shown as a dash. Where one of several collectors does not answer, the
    others are shown and that one is named.
    """
    place = where if where is not None else store
    kept, away = _asked(place, lambda keeper: keeper.archives())
    if archives:
        _say_archives(place, kept, as_json=as_json)
    else:
        _say_writings(place, kept, complete=not away, as_json=as_json)
    for problem in away:
        note(problem)
    return ExitCode.COLLECTOR if away else ExitCode.DONE


def _say_writings(
    place: str, kept: Sequence[ArchiveState], *, complete: bool, as_json: bool
) -> None:
    from anchorlib.names import escape

    answers, _ = _asked(place, lambda keeper: keeper.writings())
    writings = sorted(answers, key=lambda one: (one.run, one.rank))
    if as_json:
        document([_document(one) for one in writings])
    elif writings:
        emit(_table(writings, this_screen()))
    elif complete:
        note(f"nobody writes into {escape(place)} now")
    for state in kept:
        for text in state.lines():
            note(text)


def _say_archives(place: str, kept: Sequence[ArchiveState], *, as_json: bool) -> None:
    from anchorlib.names import escape

    if as_json:
        document([_archive_document(one) for one in kept])
    elif kept:
        emit(line for state in kept for line in _archive_lines(state, this_screen()))
    else:
        note(f"no run of {escape(place)} is archived")


def _archive_document(one: ArchiveState) -> dict[str, object]:
    return {
        "store": one.store,
        "to": one.place or None,
        "archived": one.archived,
        "alone": list(one.alone),
        "bytes": one.bytes,
        "waiting": None if one.waiting is None else list(one.waiting),
        "failing": dict(one.failing),
        "problem": one.problem or None,
    }


def _archive_lines(one: ArchiveState, screen: Screen) -> Iterator[str]:
    from anchorlib.names import escape

    first, *others = one.lines()
    sent = "" if one.bytes is None else f"; {size(one.bytes, screen)} sent since it was started"
    yield f"{escape(one.store)}: {first}{sent}"
    yield from (f"  {text}" for text in others)
    yield from (f"  {escape(run)} waits" for run in one.waiting or () if run not in one.failing)


def _asked(place: str, ask: Callable[[Keeper], list[T]]) -> tuple[list[T], list[str]]:
    """Asks each collector of a store; returns all answers, and the errors of silent collectors.

    The answers are those of all collectors in one list. Raises CollectorError, which names all
    collectors, where none of them answers.

    place: a directory, or the URL of one or several collectors.
    ask: called with the Keeper of the directory or of each collector; returns a list of answers.
    """
    from anchorlib.errors import CollectorError
    from anchorlib.upkeep import keepers_at

    answers: list[T] = []
    away: list[CollectorError] = []
    keepers = keepers_at(place)
    for keeper in keepers:
        try:
            answers += ask(keeper)
        except CollectorError as error:
            away.append(error)
    if len(away) == len(keepers) > 1:
        raise CollectorError(f"none of the collectors answers: {'; '.join(map(str, away))}")
    if len(away) == len(keepers):
        raise away[0]
    return answers, [str(error) for error in away]


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
    """Formats a duration: "250 ms" on a terminal, "0.250" (seconds) in a pipe; "-" for None."""
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
