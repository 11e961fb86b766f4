"""`anchor pull`: writes the values of one tensor to a file, or as CSV to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import (
    JsonOption,
    RunArgument,
    Selection,
    StoreOption,
    complete,
    examples,
    narrowing,
)
from anchor_cli.terminal import counted, document

if TYPE_CHECKING:
    from anchor_cli.records import Extract, SelectedRecords
    from anchorlib import Run

__all__ = ["EXAMPLES", "pull_tensor"]

EXAMPLES = examples(
    "anchor pull run1 --tensor fc2.bias@grad -o grads.npz",
    "anchor pull run1 --tensor fc2.bias@grad --step 0:10 --pass 0 -o - | head",
)


@narrowing
def pull_tensor(
    run: RunArgument,
    *,
    tensor: Annotated[
        str,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="The selector of one tensor and kind, as fc2.bias@grad.",
            show_default=False,
            autocompletion=complete.selectors,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write: .npz, .npy, .csv, .pt, .safetensors or .parquet; - is CSV on "
            "stdout.",
        ),
    ] = "-",
    selection: Selection,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write the values of one tensor to a file, or to stdout.

    With --json and a file, one document on stdout describes the file; with --json and no file, the
    document holds the values.
    """
    from anchor_cli.files import by_suffix
    from anchor_cli.records import WRITERS, answered, lost, settled
    from anchorlib.reading import open_run

    if output != "-":
        by_suffix(Path(output), WRITERS)  # a wrong suffix is refused before anything is read
    opened = open_run(run, store=store)
    selection = settled(opened, [tensor], selection)
    chosen = _the_one(opened, tensor, selection)
    extract, left_out = _extract(chosen)
    if output != "-":
        _write(extract, Path(output), opened.name, as_json=as_json)
    elif as_json:
        document(_with_values(extract, opened.name))
    else:
        _print(extract)
    problems = [lost(opened, [tensor], [chosen], selection)]
    if left_out:
        values = f"the values of {counted(left_out, 'record')}"
        problems.append(f"{chosen.title}: {values} were not kept")
    return answered("; ".join(filter(None, problems)))


def _the_one(run: Run, tensor: str, selection: Selection) -> SelectedRecords:
    """Returns the selected records of the tensor that the selector `tensor` names.

    Raises AmbiguousTensorError where the selector names several tensors or kinds, and otherwise
    what `records.selected` raises.
    """
    from anchor_cli.records import selected
    from anchorlib.errors import AmbiguousTensorError
    from anchorlib.names import escape

    candidates = selected(run, [tensor], selection)
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(one.title for one in candidates[:5])
    more = f" and {len(candidates) - 5} more" if len(candidates) > 5 else ""
    raise AmbiguousTensorError(
        f"{escape(tensor)} names {len(candidates)} tensors, pull takes one: {names}{more}"
    )


def _extract(chosen: SelectedRecords) -> tuple[Extract, int]:
    """Returns the records that have values, and how many of the chosen records have none.

    Raises ValuesNotKeptError where no record has values.
    """
    from anchor_cli.records import Extract
    from anchorlib.errors import ValuesNotKeptError
    from anchorlib.names import escape

    records = [record for one in chosen.series for record in one.records()]
    kept = [record for record in records if record.raw is not None]
    if not kept:
        raise ValuesNotKeptError(
            f"{chosen.title} holds summaries only (mode {escape(chosen.info.mode)}): "
            "see anchor stats and anchor hist"
        )
    return Extract(chosen.info.name, chosen.info.kind, kept), len(records) - len(kept)


def _write(extract: Extract, path: Path, run: str, *, as_json: bool) -> None:
    from anchor_cli.files import by_suffix, written_whole
    from anchor_cli.records import WRITERS

    with written_whole(path) as file:
        by_suffix(path, WRITERS)(extract, file)
    if as_json:
        document({**_about(extract, run), "file": str(path), "bytes": path.stat().st_size})


def _print(extract: Extract) -> None:
    from anchor_cli.records import csv_rows, write_rows
    from anchorlib.names import escape

    rows = csv_rows(extract)
    if sys.stdout.isatty():
        rows = ([escape(cell) for cell in row] for row in rows)
    write_rows(sys.stdout, rows)


def _about(extract: Extract, run: str) -> dict[str, object]:
    return {
        "run": run,
        "tensor": extract.name,
        "kind": extract.kind,
        "dtype": "|".join(extract.dtypes),
        "records": len(extract.records),
        "shape": None if extract.ragged else extract.records[0].shape,
    }


def _with_values(extract: Extract, run: str) -> dict[str, object]:
    values = [record.array for record in extract.records]
    return {**_about(extract, run), **extract.place, "value": values}
