"""`anchor import`: makes a run of a folder of tensor files that another program wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from anchor_cli.arguments import JsonOption, StoreOption, examples
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import counted, document, emit, note

__all__ = ["EXAMPLES", "import_dumps"]

EXAMPLES = examples(
    "anchor import dumps/eager",
    r"anchor import dumps --run a --step-pattern '(?P<name>.*)-s(?P<step>\d+)'",
)


def import_dumps(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A folder of .pt, .pth, .npy or .npz files; its subfolders are read, too.",
            show_default=False,
        ),
    ],
    *,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", help="The run's name. Default: the folder's name."),
    ] = None,
    step_pattern: Annotated[
        str | None,
        typer.Option(
            "--step-pattern",
            metavar="REGEX",
            help="A regular expression that is searched in each path without its suffix; its "
            "groups step, name, kind, pass and rank say which tensor the file holds.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run of that name.")
    ] = False,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Make a run of a folder of tensor dumps, so that every command works on them.

    The step is the number after the word step, iter or iteration in a path, else after epoch
    (step_12/fc1.pt), else a number at the start of a folder's or file's name (00012.fc1.pt), else a
    number at the end of the file's name (fc1_12.pt), else 0. The word grad makes the tensor a
    gradient; pass_1 and rank_1 are its pass and rank. The rest of the path and the keys inside the
    file, joined by dots, are the name.

    No code in the files is run. Records are ordered by step, values before gradients, then by name.
    A file whose tensors take more than 256 MiB and more than sixteen times the file's size is
    skipped: save such tensors contiguous and without compression. Exit code 3 where files were
    skipped, each with a line; 2 where no dump was found.
    """
    from anchor_cli.imports import Import, Placing
    from anchorlib.errors import OptionError, RunExistsError
    from anchorlib.names import check_run_name, escape
    from anchorlib.reading import open_run

    root, place = Path(folder), _local(store)
    if not root.is_dir():
        raise OptionError(f"{escape(folder)} is no folder: give one that holds .pt or .npy files")
    name = check_run_name(_named(root) if run is None else run)
    work = Import(root, place, name, overwrite=overwrite)
    placing = Placing(step_pattern)
    try:
        with progress(f"importing {folder}") as tick:
            work.all(placing, tick)
    except RunExistsError:
        raise RunExistsError(
            f"run {name!r} exists in {escape(store)}: give --overwrite, or another --run NAME"
        ) from None
    if not work.records:
        raise OptionError(
            f"{escape(folder)} holds no dump that can be read: no .pt, .pth, .npy or .npz of "
            "tensors"
        )
    document(work.document()) if as_json else emit(work.sentence())
    if stale := set(open_run(name, place).ranks) - work.ranks:
        ranks = ", ".join(map(str, sorted(stale)))
        note(f"{name} keeps its earlier records of rank {ranks}: these dumps have none of it")
    if work.left_out:
        note(f"the disk is nearly full: {counted(work.left_out, 'record')} have summaries alone")
    return ExitCode.INCOMPLETE if work.skipped or work.left_out else ExitCode.DONE


def _local(store: str) -> Path:
    from anchorlib.errors import OptionError

    if "://" in store:
        raise OptionError(
            "dumps are imported into a directory: give --store DIR, then "
            f"`anchor push RUN --store DIR --to {store}`"
        )
    return Path(store)


def _named(root: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", root.resolve().name).lstrip(".-")[:64] or "imported"
