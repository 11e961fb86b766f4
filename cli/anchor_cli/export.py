"""`anchor export`: a run for other tools: TensorBoard, zarr, or a table of all records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli import complete
from anchor_cli.exits import ExitCode
from anchor_cli.narrowing import narrowing
from anchor_cli.options import JsonOption, RunArgument, StoreOption, examples
from anchor_cli.progress import Tick, progress
from anchor_cli.selection import Selection
from anchor_cli.terminal import document, emit
from anchor_cli.words import counted

if TYPE_CHECKING:
    from anchorlib import Run, Series

__all__ = ["EXAMPLES", "export_run"]

EXAMPLES = examples(
    "anchor export run1 --tensorboard tb",
    "anchor export run1 --zarr run1.tensors.zarr",
    "anchor export run1 --tensor '*@grad' --step 0:100 --parquet gradients.parquet",
)


@narrowing
def export_run(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="DIR",
            help="Event files in DIR/RUN: numbers, norms, and histograms over exponents.",
        ),
    ] = None,
    csv_file: Annotated[
        str | None,
        typer.Option(
            "--csv", metavar="FILE", help="Coordinates and summaries, a row a record; - is stdout."
        ),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="The same as a Parquet table.")
    ] = None,
    zarr: Annotated[
        Path | None,
        typer.Option(
            "--zarr", metavar="DIR", help="Values as a zarr hierarchy in DIR, an array a tensor."
        ),
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="Only these tensors; may be repeated.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    selection: Selection,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write what is known of each record in the form of other tools.

    Values of one tensor are taken out by `anchor pull`. A second export takes the first's place.
    """
    from anchorlib.errors import OptionError
    from anchorlib.reading import open_run

    places = {"tensorboard": tensorboard, "zarr": zarr, "csv": csv_file, "parquet": parquet}
    chosen = {name: place for name, place in places.items() if place is not None}
    if not chosen:
        raise OptionError(
            "say where to: --zarr DIR, --tensorboard DIR, --csv FILE or --parquet FILE"
        )
    if csv_file == "-" and as_json:
        raise OptionError("--csv - and --json both go to stdout: give one of them a file")
    opened = open_run(run, store=store)
    found = _series(opened, tensor or (), selection)
    said: dict[str, Any] = {"run": opened.name, "records": sum(map(len, found))}
    with progress(f"exporting {opened.name}") as tick:
        for name, place in chosen.items():
            said |= _WRITERS[name](opened.name, found, place, tick)
    if as_json:
        document(said)
    elif csv_file != "-":
        emit(_sentence(said))
    return ExitCode.DONE


def _series(run: Run, selectors: Sequence[str], selection: Selection) -> list[Series]:
    """All that is selected, of every mode. Raises UnknownTensorError where that is nothing."""
    from anchor_cli.selected import narrowed, settled
    from anchorlib.errors import UnknownTensorError

    selection = settled(run, selectors, selection)
    infos = [i for i in run.tensors(*selectors) if selection.mode in (None, i.mode)]
    found = [one for info in infos for one in narrowed(run, info, selection).series]
    if not found:
        raise UnknownTensorError(f"{run.name} has no record there {selection}".rstrip())
    return found


def _to_zarr(run: str, found: Sequence[Series], place: Path, tick: Tick) -> dict[str, Any]:
    from anchor_cli.hierarchy import write_zarr

    return write_zarr(run, found, place, tick)


def _to_tensorboard(run: str, found: Sequence[Series], place: Path, tick: Tick) -> dict[str, Any]:
    """One folder, or one a rank where there are several: TensorBoard calls each a run."""
    from anchor_cli.tensorboard import write_events

    folder = place / run
    ranks = sorted({one.rank for one in found})
    scalars = histograms = 0
    for rank in ranks:
        events = folder / f"rank{rank}" if len(ranks) > 1 else folder
        written = write_events([one for one in found if one.rank == rank], events, tick)
        scalars, histograms = scalars + written.scalars, histograms + written.histograms
    return {"tensorboard": str(folder), "scalars": scalars, "histograms": histograms}


def _to_csv(_: str, found: Sequence[Series], place: str, tick: Tick) -> dict[str, Any]:  # noqa: ARG001
    from anchor_cli.files import written_text
    from anchor_cli.sheets import write_rows

    with written_text(place) as file:
        rows = _rows(found)
        first = next(rows)
        write_rows(file, [first, first.values()])
        write_rows(file, (row.values() for row in rows))
    return {"csv": place}


def _rows(found: Sequence[Series]) -> Iterator[dict[str, Any]]:
    from anchor_cli.summarised import summarised

    return (row for one in found for row in summarised(one))


def _to_parquet(_: str, found: Sequence[Series], place: Path, tick: Tick) -> dict[str, Any]:  # noqa: ARG001
    from anchor_cli.files import written_whole
    from anchorlib.errors import MissingExtraError

    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError(
            "--parquet needs pyarrow: pip install 'anchorlib[parquet]', or use --csv"
        ) from None
    tables = [arrow.table(_columns(one, arrow)) for one in found]
    with written_whole(place) as file:
        parquet.write_table(arrow.concat_tables(tables), file)
    return {"parquet": str(place)}


def _columns(series: Series, arrow: Any) -> dict[str, Any]:
    head = {"tensor": series.name, "kind": series.kind, "mode": series.mode, "rank": series.rank}
    fixed = {name: arrow.repeat(value, len(series)) for name, value in head.items()}
    return {**fixed, **dict(series.columns)}


_WRITERS: dict[str, Callable[[str, Sequence[Series], Any, Tick], dict[str, Any]]] = {
    "tensorboard": _to_tensorboard,
    "zarr": _to_zarr,
    "csv": _to_csv,
    "parquet": _to_parquet,
}


def _sentence(said: dict[str, Any]) -> str:
    from anchorlib.names import escape

    places = [said[name] for name in ("tensorboard", "zarr", "csv", "parquet") if name in said]
    folder = said.get("tensorboard")
    look = (
        "" if folder is None else f"; see tensorboard --logdir {escape(str(Path(folder).parent))}"
    )
    where = " and ".join(escape(str(place)) for place in places)
    return f"{counted(said['records'], 'record')} of {said['run']} in {where}{look}"
