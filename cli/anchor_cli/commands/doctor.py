"""`anchor doctor`: checks whether recording would work here, and says what to repair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import (
    JsonOption,
    StoreOption,
    complete,
    examples,
    not_empty,
    without_slash,
)
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import document, emit, this_screen

if TYPE_CHECKING:
    from anchor_cli.checkups import CheckResult

__all__ = ["EXAMPLES", "examine"]

EXAMPLES = examples(
    "anchor doctor",
    "anchor doctor run1",
    "anchor doctor --json",
    "anchor doctor --health grpc://127.0.0.1:50051",
)


def examine(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run to check as well: its name in the store, its path, or its URL.",
            show_default=False,
            autocompletion=complete.run_names,
        ),
    ] = None,
    *,
    health: Annotated[
        str | None,
        typer.Option(
            "--health",
            metavar="ADDRESS",
            help="Only ask this collector whether it serves, as a health probe does: HOST:PORT, "
            "or grpcs://HOST:PORT for TLS.",
            show_default=False,
            callback=not_empty,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Check what recording depends on: versions, environment, store, disk, collector, spools.

    With RUN, check also its gaps, whether its process is alive, values that are not finite, and
    precision. Each finding is a line that begins with ok, beware or broken, and says what to do.
    Nothing is written.

    Exit code 1 where a finding is broken, 3 where RUN has gaps. With --health only the collector is
    asked: 0 where it serves, 4 where it does not.
    """
    if health is not None:
        return _health(health, run, as_json=as_json)
    findings = list(_surroundings(store))
    gaps = False
    if run is not None:
        of_run, gaps = _of_run(without_slash(run), store)
        findings += of_run
    broken = sum(one.level == "broken" for one in findings)
    if as_json:
        document(_document(run, store, findings))
    else:
        emit(one.line(this_screen()) for one in findings)
    if broken:
        return ExitCode.DIFFERENCE
    return ExitCode.INCOMPLETE if gaps else ExitCode.DONE


def _health(address: str, run: str | None, *, as_json: bool) -> int:
    """Asks a collector whether it serves, prints the answer and returns exit code 0.

    address: a URL, or HOST:PORT as `anchor serve` prints it, which means a collector without TLS.
    Raises CollectorError where the collector does not serve, OptionError where a run is given.
    """
    from anchorlib.errors import CollectorError, OptionError
    from anchorlib.wire import ask_health, parse_address

    if run is not None:
        raise OptionError("--health only asks a collector: leave RUN out")
    bare = re.fullmatch(r"[^/]+:\d+", address)
    where = parse_address(f"grpc://{address}" if bare else address)
    state, seconds = ask_health(where)
    if state != "SERVING":
        raise CollectorError(f"{where} says {state}: it is starting or stopping; ask again")
    if as_json:
        document({"address": str(where), "state": state, "seconds": seconds})
    else:
        emit(f"{where} serves; it answered in {seconds * 1000:.1f} ms")
    return ExitCode.DONE


def _document(run: str | None, store: str, findings: Sequence[CheckResult]) -> dict[str, object]:
    from anchor_cli.checkups import without_password

    return {
        "store": without_password(store),
        "run": None if run is None else without_password(run),
        "broken": sum(one.level == "broken" for one in findings),
        "beware": sum(one.level == "beware" for one in findings),
        "findings": [one.document() for one in findings],
    }


def _surroundings(store: str) -> Iterator[CheckResult]:
    from anchor_cli.checkups import environment, packages, spools, storage, summaries

    yield from packages()
    yield from summaries()
    yield from environment()
    yield from storage(store)
    yield from spools(store)


def _of_run(run: str, store: str) -> tuple[list[CheckResult], bool]:
    """Checks a run; returns the results, and whether the run has gaps.

    A run that cannot be read gives one result of level "broken", and False. Raises
    RunNotFoundError where there is no such run, OptionError where `run` or `store` is invalid.
    """
    from anchor_cli.checkups import CheckResult, checkup
    from anchorlib.errors import CollectorError, StoreError
    from anchorlib.names import escape
    from anchorlib.reading import open_run

    try:
        opened = open_run(run, store=store)
        return list(checkup(opened)), bool(opened.gaps())
    except (CollectorError, StoreError) as error:
        return [CheckResult("broken", escape(run), str(error))], False
