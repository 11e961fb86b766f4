"""`anchor tail`: shows the records of a run as they arrive."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import RunArgument, StoreOption, complete, examples
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import Screen, counted, cut_name, emit, figure, note, plain, this_screen

if TYPE_CHECKING:
    from anchor_cli.records import Following

__all__ = ["EXAMPLES", "tail_run"]

EXAMPLES = examples("anchor tail run1", "anchor tail run1 'fc*@grad' loss --json")

_HEAD = f"{'step':>8} {'pass':>4} {'call':>4} {'min':>10} {'max':>10} {'l2':>10}  tensor"
_ODD = ("nan", "inf")
_SECONDS = 5.0  # the span over which rates are averaged


def tail_run(
    run: RunArgument,
    selector: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SELECTOR",
            help="Show only the tensors that these select, as 'fc*@grad'.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    *,
    last: Annotated[
        int,
        typer.Option("--last", "-n", metavar="N", min=0, help="Begin with the last N records."),
    ] = 10,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.01, help="How long to wait between two looks."
        ),
    ] = 0.5,
    store: StoreOption = "anchors",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON document for each record, each on its own line."
        ),
    ] = False,
) -> int:
    """Show the records of a run as they arrive, until the run is closed.

    On a terminal the last line shows how many records and steps arrive each second. Observations
    that could not be recorded are reported on stderr. Ctrl-C ends the command.
    """
    from anchor_cli.records import Following
    from anchorlib.names import matches, parse
    from anchorlib.reading import open_run

    opened = open_run(run, store=store)
    readings = [parse(text) for text in selector or ()]
    following = Following(
        opened, lambda name, kind: not readings or any(matches(r, name, kind) for r in readings)
    )
    following.skip(last)
    said = _Said(this_screen(), as_json=as_json)
    with said:
        while True:
            closed = opened.state == "closed"  # asked first, so that the look misses no record
            said.tell(following)
            if closed:
                opened.tensors(*selector or ())  # raises for a selector that names nothing
                return ExitCode.DONE
            time.sleep(interval)


@dataclass(slots=True)
class _Said:
    """Prints records on stdout, and on stderr a status line, which is rewritten in place.

    There is a status line only where stderr is a terminal.

    records: how many records were printed.
    lost: how many observations were not recorded, or not with their values.
    step: the highest step of a printed record; -1 before the first.
    """

    screen: Screen
    as_json: bool
    records: int = 0
    lost: int = 0
    step: int = -1
    _looks: list[tuple[float, int, int]] = field(default_factory=list)
    _status: bool = False

    def __enter__(self) -> None:
        self._status = sys.stderr.isatty()
        if not self.as_json:
            emit(self.screen.style(_HEAD, 1))

    def __exit__(self, *_: object) -> None:
        if self._status:
            sys.stderr.write("\n")

    def tell(self, following: Following) -> None:
        """Prints the records and gaps that are new since the last call, then the status line."""
        self._clear()
        for record in following.records():
            self.records += 1
            self.step = max(self.step, record["step"])
            line = json.dumps(plain(record), allow_nan=False) if self.as_json else None
            emit(line or _line(record, self.screen))
        sys.stdout.flush()
        for name, kind, reason, count in following.gaps():
            self.lost += count
            note(_gap(name, kind, reason, count))
        self._rates()

    def _clear(self) -> None:
        if self._status:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _rates(self) -> None:
        now = time.monotonic()
        self._looks.append((now, self.records, self.step))
        while now - self._looks[0][0] > _SECONDS:
            del self._looks[0]
        if not self._status:
            return
        since, records, step = self._looks[0]
        passed = max(now - since, 1e-9) if len(self._looks) > 1 else float("inf")
        sys.stderr.write(
            f"{counted(self.records, 'record')}, {figure((self.records - records) / passed)}/s; "
            f"step {max(self.step, 0)}, {figure((self.step - step) / passed)}/s; "
            f"{self.lost:,} not recorded"
        )
        sys.stderr.flush()


def _line(record: Mapping[str, Any], screen: Screen) -> str:
    from anchorlib.names import escape, join

    place = f"{record['step']:>8} {record['pass_index']:>4} {record['call']:>4}"
    figures = " ".join(f"{record[name]:>10.4g}" for name in ("min", "max", "l2"))
    odd = "".join(f"  {record[name]:,} {name}" for name in _ODD if record[name])
    where = f" rank {record['rank']}" if record["rank"] else ""
    name = f"{escape(join(record['tensor'], record['kind']))}{where}"
    if screen.width is not None:
        room = screen.width - len(f"{place} {figures}  {odd}")
        name = cut_name(name, max(room, 8), "…" if screen.glyphs else "...")
    return f"{place} {figures}  {name}{screen.style(odd, 31)}"


def _gap(name: str, kind: str, reason: str, count: int) -> str:
    from anchorlib.names import escape, join

    return f"{escape(join(name, kind))} lacks {counted(count, 'record')}: {escape(reason)}"
