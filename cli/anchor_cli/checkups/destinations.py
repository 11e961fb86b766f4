"""The checks of `anchor doctor` of the store, its disk or collector, and the spools."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anchor_cli.checkups.check_result import CheckResult
from anchor_cli.terminal import Screen, counted, size
from anchorlib.errors import AnchorError, OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.wire import Address

__all__ = ["spools", "storage"]

LITTLE_ROOM = 1 << 30
_PEOPLE = Screen(width=80)  # a terminal, for which sizes are rounded


def storage(store: str) -> Iterator[CheckResult]:
    """Checks whether runs can be recorded into a store; yields the results.

    store: a directory, a collector's URL, or an object store's URL.
    """
    from anchorlib.store import is_object_url

    if is_object_url(store):
        yield from _archive(store)
    elif "://" in store:
        yield from _collector(store)
    else:
        yield from _directory(Path(store))


def spools(store: str) -> Iterator[CheckResult]:
    """Checks the spools of this machine: queues on disk of records for a collector.

    Yields first, for the URL of a collector or object store as `store`, whether new spools can be
    made. Then comes a result for each spool that a living process uses, and for each spool that
    holds records although its process has ended.
    """
    from anchorlib.spool import spool_room, spools_here

    if "://" in store:
        try:
            room = spool_room()
        except OptionError:
            room = None  # the finding about the environment says why
        if room is not None:
            most = f"at most {size(room.limit, _PEOPLE)}"
            level = _writable(room.path)
            yield CheckResult(
                "ok" if level else "broken",
                "spool",
                f"remote sessions spool in {escape(str(room.path))}, {most}"
                + ("" if level else ", which cannot be written"),
                "" if level else "set ANCHOR_SPOOL to a directory of this machine",
            )
    for spool in spools_here():
        what = f"{escape(spool.run)} rank {spool.rank}" if spool.run else "an unknown run"
        held = f"{size(spool.nbytes, _PEOPLE)} of {what}"
        if spool.live:
            yield CheckResult("ok", "spool", f"{held}: its process is alive and delivers it")
            continue
        if not spool.nbytes:  # empty: the next session of that rank removes it
            continue
        line = f"anchor push {shlex.quote(str(spool.path))} --to {spool.to or 'STORE'}"
        yield CheckResult(
            "beware", "spool", f"{held} wait for a collector, and no process delivers them",
            f"run `{escape(line)}`",
        )  # fmt: skip


def _collector(store: str) -> Iterator[CheckResult]:
    from anchorlib.wire import parse_addresses

    try:
        addresses = parse_addresses(store)
    except AnchorError as error:
        yield CheckResult("broken", "collector", str(error))
        return
    for address in addresses:
        yield _answer(address)


def _answer(address: Address) -> CheckResult:
    from anchorlib.store import list_runs, locate_store
    from anchorlib.wire import ask_health

    try:
        state, seconds = ask_health(address)
        runs = len(list_runs(locate_store(str(address))))
    except AnchorError as error:
        return CheckResult("broken", "collector", str(error))
    answer = f"{address} answers in {seconds * 1000:.1f} ms and serves {counted(runs, 'run')}"
    if state == "SERVING":
        return CheckResult("ok", "collector", answer)
    todo = "it is starting or stopping: ask again"
    return CheckResult("beware", "collector", f"{address} says {state}", todo)


def _archive(store: str) -> Iterator[CheckResult]:
    from anchorlib.store import list_runs, locate_store

    try:
        runs = len(list_runs(locate_store(store)))
    except AnchorError as error:
        yield CheckResult("broken", "archive", str(error))
        return
    yield CheckResult(
        "beware", "archive", f"{escape(store)} holds {counted(runs, 'run')}, and is for reading",
        "record into a directory or at a collector, then `anchor archive RUN --to URL`",
    )  # fmt: skip


def _directory(path: Path) -> Iterator[CheckResult]:
    from anchorlib.store import list_runs, locate_store

    shown = escape(str(path))
    there = _nearest(path)
    if path.exists():
        try:
            store = locate_store(path)
            text = f"{shown} holds {counted(len(list_runs(store)), 'run')}"
        except AnchorError as error:
            yield CheckResult("broken", "store", str(error), "give --store another directory")
            return
    else:
        text = f"{shown} is not there yet and will be made"
    if not _writable(path):
        yield CheckResult(
            "broken", "store", f"{escape(str(there))} cannot be written by this user",
            "give --store a directory that can",
        )  # fmt: skip
        return
    yield CheckResult("ok", "store", text)
    yield _disk(there)
    yield from _abandoned(path)


def _disk(there: Path) -> CheckResult:
    """Checks how much room runs may take on a folder's file system, and returns the result.

    The result is "broken" without any room, "beware" with less than 1 GiB. A twentieth of the file
    system does not count as room, because recording leaves it free.
    """
    system = os.statvfs(there)
    free = system.f_bavail * system.f_frsize
    room = max(free - system.f_blocks // 20 * system.f_frsize, 0)
    text = (
        f"{size(free, _PEOPLE)} free, of which runs may take {size(room, _PEOPLE)}: a twentieth of "
        "the file system stays free"
    )
    todo = "make room, or give --store another file system; max_bytes= overrides it"
    if not room:
        return CheckResult("broken", "disk", f"{text}, so values will be left out", todo)
    return (
        CheckResult("beware", "disk", text, todo)
        if room < LITTLE_ROOM
        else CheckResult("ok", "disk", text)
    )


def _abandoned(path: Path) -> Iterator[CheckResult]:
    """Yields one warning about the runs of a store whose writer died before it closed them.

    The warning names at most five of these runs, and counts the others. Before the warning comes a
    result of level "broken" for each run that cannot be read.
    """
    from anchorlib.reading import open_run
    from anchorlib.store import list_runs, locate_store

    if not path.is_dir():
        return
    left = []
    for name in list_runs(locate_store(path)):
        try:
            run = open_run(name, path)
            if run.state == "open" and run.live is False:
                left.append(name)
        except AnchorError as error:
            yield CheckResult(
                "broken", "store", f"{name} cannot be read: {error}", f"see `anchor verify {name}`"
            )
    if left:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        yield CheckResult(
            "beware", "open runs",
            f"{', '.join(left[:5])}{more} left by a process that died; what was committed is whole",
            "go on with resume=True, or begin anew with overwrite=True",
        )  # fmt: skip


def _nearest(path: Path) -> Path:
    whole = path.absolute()
    return next(one for one in (whole, *whole.parents) if one.exists())


def _writable(path: Path) -> bool:
    there = _nearest(path)
    frozen = os.statvfs(there).f_flag & os.ST_RDONLY
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK) and not frozen
