"""`anchor runs`: the runs of a store."""

from __future__ import annotations

from dataclasses import dataclass

from anchor_cli.exits import ExitCode
from anchor_cli.names import spans
from anchor_cli.options import JsonOption, StoreOption, examples
from anchor_cli.table import Column, written
from anchor_cli.terminal import Screen, document, emit, moment, note, size, this_screen

__all__ = ["EXAMPLES", "show_runs"]

EXAMPLES = examples("anchor runs", "anchor runs --store grpc://127.0.0.1:50051 --json")

_COLUMNS = [
    Column("name", cut=True),
    Column("state"),
    Column("ranks", cut=True),
    Column("steps", right=True),
    Column("tensors", right=True),
    Column("bytes", right=True),
    Column("when", spare=True),
]


@dataclass(frozen=True, slots=True)
class _Line:
    """What is said of a run; `when` is its start, nanoseconds since the epoch."""

    name: str
    state: str
    ranks: tuple[int, ...]
    steps: int
    tensors: int
    bytes: int
    when: int

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "when": moment(self.when, Screen())}

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
        ]


def show_runs(*, store: StoreOption = "anchors", as_json: JsonOption = False) -> int:
    """List the runs of a store, with what each holds and when it began."""
    from anchorlib.errors import RunNotFoundError, StoreError
    from anchorlib.store import list_runs, locate_store

    lines, unreadable = [], []
    for name in list_runs(locate_store(store)):
        try:
            lines.append(_line(name, store))
        except (RunNotFoundError, StoreError) as error:  # the others are still worth showing
            unreadable.append(f"{name} cannot be read: {error}")
    if as_json:
        document([line.document() for line in lines])
    else:
        screen = this_screen()
        emit(written(_COLUMNS, [line.cells(screen) for line in lines], screen))
    for problem in unreadable:
        note(problem)
    return ExitCode.INCOMPLETE if unreadable else ExitCode.DONE


def _line(name: str, store: str) -> _Line:
    from anchorlib.reading import open_run

    run = open_run(name, store=store)
    return _Line(
        name=run.name,
        state=run.state,
        ranks=tuple(run.ranks),
        steps=len(run.steps),
        tensors=len(run.tensors()),
        bytes=run.bytes,
        when=run.started_ns,
    )
