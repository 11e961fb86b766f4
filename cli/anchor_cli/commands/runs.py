"""`anchor runs`: lists the runs of a store."""

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
class _ListedRun:
    """What the list says about one run.

    steps, tensors: how many steps and how many tensors have records.
    bytes: the size of all values.
    when, written: the run's start, and the time of its last record; nanoseconds since the epoch.
    gaps: the number of observations that were not recorded, or not with their values.
    unrecorded: the number of tensors without any record.
    archive: the archive of a run whose files are only there; "" for every other run.
    missing: the ranks of a closed run that none of several collectors has; () for any other run.
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
    missing: tuple[int, ...] = ()

    def document(self) -> dict[str, object]:
        """Returns the run as an object of the JSON document."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        times = {"when": moment(self.when, Screen()), "written": moment(self.written, Screen())}
        alone = {"archive": self.archive} if self.archive else {}
        missing = {"missing": list(self.missing)} if self.missing else {}
        return {**fields, **times, "gaps": self.gaps, **alone, **missing}

    def cells(self, screen: Screen) -> list[str]:
        """Returns the run as the cells of a table's row."""
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

    The column steps counts the steps that have records: an evaluation after the last step of the
    optimizer is recorded as a step of its own, and steps that were left out do not count. The
    column bytes counts the run's values. What a run takes on disk, with tables and metadata, is
    the column disk of `anchor gc --max-size 0B --dry-run`.
    """
    from anchorlib.errors import AnchorError, CollectorError
    from anchorlib.store import LocalLocation, SeveralCollectors, list_runs, locate_store

    lines, unreadable = [], []
    location = locate_store(store)
    alone = _alone(store)
    for name in list_runs(location):
        try:
            line = _line(name, store, of_several=isinstance(location, SeveralCollectors))
            lines.append(replace(line, archive=alone.get(name, "")))
        except AnchorError as error:  # the other runs are still worth showing
            # Where the store is a directory, only the archive of this one run does not answer.
            if isinstance(error, CollectorError) and not isinstance(location, LocalLocation):
                raise
            unreadable.append(f"{name} cannot be read: {error}")
    if as_json:
        document([line.document() for line in lines])
    else:
        screen = this_screen()
        emit(_table(lines, screen))
    for problem in [*unreadable, *_gap_sentences(lines), *_partly(lines)]:
        note(problem)
    return ExitCode.INCOMPLETE if unreadable else ExitCode.DONE


def _table(lines: Sequence[_ListedRun], screen: Screen) -> Iterator[str]:
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
    """Returns the runs whose files are in an archive alone: the archive, keyed by the run's name.

    Returns {} for an object store, which has no notes of archived runs, and where a collector does
    not answer.
    """
    from anchorlib.errors import AnchorError
    from anchorlib.upkeep import keeper_at

    try:
        return keeper_at(store).alone()
    except AnchorError:  # an object store has no notes; `list_runs` tells of a silent collector
        return {}


def _gap_sentences(lines: Sequence[_ListedRun]) -> Iterator[str]:
    """Yields one sentence that names all runs in which some tensors have no record.

    Yields nothing where there is no such run.
    """
    clauses = [
        f"{line.name} has no record of {counted(line.unrecorded, 'tensor')}"
        for line in lines
        if line.unrecorded
    ]
    if clauses:
        yield f"{'; '.join(clauses)}: see `anchor names RUN`"


def _partly(lines: Sequence[_ListedRun]) -> Iterator[str]:
    """Yields a sentence for each run of which ranks are missing.

    A removal asks one collector after the other. An interrupted removal therefore leaves the ranks
    of the collectors that were not asked. The user may also have chosen not to record some ranks,
    which a run does not say; so the sentence names both reasons.
    """
    for line in lines:
        if line.missing:
            yield (
                f"{line.name} has no record of rank{'s' if len(line.missing) > 1 else ''} "
                f"{spans(line.missing)}: unless `ranks=` or ANCHOR_RANKS left that out, the run "
                f"was removed in part, and `anchor rm {line.name}` with the same --store removes "
                "the rest"
            )


def _line(name: str, store: str, *, of_several: bool) -> _ListedRun:
    from anchor_cli.records import Gaps
    from anchorlib.peers import missing_ranks
    from anchorlib.reading import open_run

    run = open_run(name, store=store)
    gaps = Gaps(run)
    return _ListedRun(
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
        missing=missing_ranks(run, run.ranks) if of_several and run.state == "closed" else (),
    )
