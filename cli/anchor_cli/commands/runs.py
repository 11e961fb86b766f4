"""`anchor runs`: the runs of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anchor_cli.arguments import JsonOption, StoreOption, examples
from anchor_cli.commands.names import GAPS, spans
from anchor_cli.exits import ExitCode
from anchor_cli.terminal import (
    Column,
    Screen,
    age,
    counted,
    document,
    emit,
    moment,
    note,
    size,
    this_screen,
    written,
)

__all__ = ["EXAMPLES", "show_runs"]

EXAMPLES = examples("anchor runs", "anchor runs --store grpc://127.0.0.1:50051 --json")

_COLUMNS = [
    Column("name", cut=True, main=True),
    Column("state"),
    Column("ranks", cut=True),
    Column("steps", right=True),
    Column("tensors", right=True),
    Column("bytes", right=True),
    Column("when", spare=1),
    Column("written", spare=2),
]

_ARCHIVE = Column("only in", cut=True, spare=3)
_FIELDS = ("name", "state", "ranks", "steps", "tensors", "bytes")


@dataclass(frozen=True, slots=True)
class _Line:
    """What is said of a run.

    when, written: its start, and when something was last written to it; nanoseconds since the
        epoch.
    gaps: how many observations were not recorded, or not with their values.
    unrecorded: of how many tensors nothing was recorded.
    archive: where it is, of a run whose files are in its archive alone; "" of every other one.
    """

    name: str
    state: str
    ranks: tuple[int, ...]
    steps: int
    tensors: int
    bytes: int
    when: int
    written: int
    gaps: int
    unrecorded: int
    archive: str = ""

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        times = {"when": moment(self.when, Screen()), "written": moment(self.written, Screen())}
        return {**fields, **times, "gaps": self.gaps, "archive": self.archive or None}

    def cells(self, screen: Screen) -> list[str]:
        """As a table has it."""
        return [
            self.name,
            self.state,
            spans(self.ranks),
            str(self.steps),
            str(self.tensors),
            size(self.bytes, screen),
            moment(self.when, screen),
            age(self.written, screen),
        ]


def show_runs(*, store: StoreOption = "anchors", as_json: JsonOption = False) -> int:
    """List the runs of a store: what each holds, when it began and was last written to.

    bytes are those of its values; what it takes on disk, rows and labels too, is `disk` in
    `anchor gc --max-size 1 --dry-run`.
    """
    from anchorlib.errors import AnchorError, CollectorError
    from anchorlib.store import LocalLocation, list_runs, locate_store

    lines, unreadable = [], []
    location = locate_store(store)
    alone = _alone(store)
    for name in list_runs(location):
        try:
            lines.append(replace(_line(name, store), archive=alone.get(name, "")))
        except AnchorError as error:  # the others are still worth showing
            # Of a directory it is the archive of this one run that is away.
            if isinstance(error, CollectorError) and not isinstance(location, LocalLocation):
                raise
            unreadable.append(f"{name} cannot be read: {error}")
    if as_json:
        document([line.document() for line in lines])
    else:
        screen = this_screen()
        emit(_table(lines, screen))
    for problem in [*unreadable, *_told(lines)]:
        note(problem)
    return ExitCode.INCOMPLETE if unreadable else ExitCode.DONE


def _table(lines: Sequence[_Line], screen: Screen) -> Iterator[str]:
    from anchorlib.names import escape

    rows = [line.cells(screen) for line in lines]
    columns = list(_COLUMNS)
    if any(line.gaps for line in lines):
        rows = [[*row, str(line.gaps)] for row, line in zip(rows, lines, strict=True)]
        columns.append(GAPS)
    if any(line.archive for line in lines):
        rows = [[*row, escape(line.archive) or "-"] for row, line in zip(rows, lines, strict=True)]
        columns.append(_ARCHIVE)
    return written(columns, rows, screen)


def _alone(store: str) -> dict[str, str]:
    """The runs that are in an archive alone, and which, where the store knows."""
    from anchorlib.errors import AnchorError
    from anchorlib.upkeep import keepers_at

    try:
        told = [one for keeper in keepers_at(store) for one in keeper.archives()]
    except AnchorError:  # an object store keeps none of them; a collector that is away is told of
        return {}
    return {run: one.place or "its archive" for one in told for run in one.alone}


def _told(lines: Sequence[_Line]) -> Iterator[str]:
    """One sentence about all tensors of which nothing was recorded."""
    clauses = [
        f"{line.name} has no record of {counted(line.unrecorded, 'tensor')}"
        for line in lines
        if line.unrecorded
    ]
    if clauses:
        yield f"{'; '.join(clauses)}: see `anchor names RUN`"


def _line(name: str, store: str) -> _Line:
    from anchor_cli.records import Gaps
    from anchorlib.reading import open_run

    run = open_run(name, store=store)
    gaps = Gaps(run)
    return _Line(
        name=run.name,
        state="copied" if run.is_copy else run.state,
        ranks=tuple(run.ranks),
        steps=len(run.steps),
        tensors=len(run.tensors()),
        bytes=run.bytes,
        when=run.started_ns,
        written=run.written_ns,
        gaps=gaps.total,
        unrecorded=len(gaps.unrecorded()),
    )
