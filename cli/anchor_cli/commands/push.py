"""`anchor push`: delivers the spool of a dead trainer, or a whole run, to another store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, StoreOption, examples
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import document, emit, note
from anchorlib.names import escape

__all__ = ["EXAMPLES", "push_run"]

EXAMPLES = examples(
    "anchor push ~/.cache/anchorlib/spool/run1.rank0.5f0ca6aa --to grpc://127.0.0.1:50051",
    "anchor push ~/.cache/anchorlib/spool/run1.rank0.5f0ca6aa --to anchors --as run1-rest",
    "anchor push run1 --to /archive/anchors",
)

_PATIENCE = 30.0  # seconds without any answer after which a collector counts as unreachable


def push_run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_SPOOL_DIR",
            help="The directory of a spool; or a run, by its name in the store, its path or URL.",
            show_default=False,
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="STORE",
            help="The store to deliver to: a directory, or grpc://HOST:PORT of a collector.",
            show_default=False,
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Another name for the run in that store, where its own name is taken.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Deliver a spool that no live process owns, or copy a run, to another store.

    The command may be repeated: records that are in the store already are compared, and not sent
    again. A delivered spool is removed; where the store holds other records than the spool, nothing
    is removed. Exit code 3 where a part of the spool was damaged.
    """
    from anchorlib.sinks import push

    with progress("anchor: delivering") as tick:
        done = push(what, to, store, run=name, patience=_PATIENCE, progress=tick)
    outcome = asdict(done)
    lost, aside = outcome.get("lost", 0), outcome.get("set_aside", 0)
    if as_json:
        document({"to": to, **outcome})
    elif not (done.records or lost or aside) and "lost" in outcome:
        emit(f"nothing waits in {escape(what)}")
    else:
        fresh = done.records - done.already
        emit(f"{done.run}: {fresh} records delivered to {to}, {done.already} were there")
    if aside or lost:
        note(
            f"{aside} segments of the spool were damaged, {lost} records are known to be lost; "
            f"the damaged files stay in {what}"
        )
        return ExitCode.INCOMPLETE
    return ExitCode.DONE
