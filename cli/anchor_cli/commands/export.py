"""`anchor export`: writes a run for TensorBoard, W&B, MLflow or zarr, or as a table of records."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anchor_cli.arguments import (
    JsonOption,
    RunArgument,
    Selection,
    StoreOption,
    complete,
    examples,
    narrowing,
    without_slash,
)
from anchor_cli.exits import ExitCode
from anchor_cli.progress import progress
from anchor_cli.terminal import counted, document, emit
from anchorlib.progress import Progress

if TYPE_CHECKING:
    from anchor_cli.exports import ExportSource
    from anchorlib import Run, Series
    from anchorlib.diagnosis import Comparison

__all__ = ["EXAMPLES", "export_run"]

EXAMPLES = examples(
    "anchor export run1 --tensorboard tb",
    "anchor export compiled --against eager --tensorboard tb",
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
            help="Write event files into DIR/RUN: numbers, norms, and histograms over exponents.",
        ),
    ] = None,
    wandb: Annotated[
        Path | None,
        typer.Option(
            "--wandb",
            metavar="DIR",
            help="Write the same as an offline run of Weights & Biases into DIR/wandb, for `wandb "
            "sync`.",
        ),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            "--mlflow",
            metavar="DIR_OR_URI",
            help="Write the same as a run of MLflow, into a folder or to a tracking URI.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="Compare RUN with this run, and export the verdict and the growth of differences "
            "to TensorBoard, W&B and MLflow.",
            autocompletion=complete.run_names,
        ),
    ] = None,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            "--noise",
            metavar="RUN",
            help="A rerun of the run of --against, as for `anchor compare`; may be repeated.",
            autocompletion=complete.run_names,
        ),
    ] = None,
    csv_file: Annotated[
        str | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write coordinates and summaries, one row for each record; - is stdout.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="FILE", help="Write the rows of --csv as Parquet."),
    ] = None,
    zarr: Annotated[
        Path | None,
        typer.Option(
            "--zarr",
            metavar="DIR",
            help="Write values as a zarr hierarchy into DIR, one array for each tensor.",
        ),
    ] = None,
    tensor: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor",
            "-t",
            metavar="SEL",
            help="Export only these tensors; may be repeated.",
            autocompletion=complete.selectors,
        ),
    ] = None,
    selection: Selection,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Write the records of a run for other tools.

    To write the values of one tensor to a file, use `anchor pull`. A second export replaces the
    first, except in W&B and MLflow, where each export is a run of its own.
    """
    from anchor_cli.exports import ExportSource
    from anchorlib.reading import open_run

    places = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "zarr": zarr,
              "csv": csv_file, "parquet": parquet}  # fmt: skip
    chosen = {name: place for name, place in places.items() if place is not None}
    _check(chosen, against, noise, json=as_json)
    opened = open_run(run, store=store)
    series = _series(opened, tensor or (), selection)
    compared = _compared(opened, against, noise or (), tensor, store)
    exported = ExportSource(opened.name, series, compared)
    said: dict[str, Any] = {"run": opened.name, "records": sum(map(len, series))}
    said |= {} if compared is None else {"verdict": compared.verdict}
    with progress(f"exporting {opened.name}") as tick:
        for name, place in chosen.items():
            said |= _WRITERS[name](exported, place, tick)
    if as_json:
        document(said)
    elif csv_file != "-":
        emit(_sentence(said))
    return ExitCode.DONE


def _check(
    chosen: Mapping[str, Any], against: str | None, noise: Sequence[str] | None, *, json: bool
) -> None:
    """Raises OptionError where options contradict each other, or where no output is given.

    chosen: the values of the given options that name an output, keyed by the option, such as "csv".
    against, noise, json: the values of --against, --noise and --json.
    """
    from anchorlib.errors import OptionError

    if not chosen:
        raise OptionError(
            "say where to: --tensorboard DIR, --wandb DIR, --mlflow DIR, --zarr DIR, --csv FILE or "
            "--parquet FILE"
        )
    if chosen.get("csv") == "-" and json:
        raise OptionError("--csv - and --json both go to stdout: give one of them a file")
    if against is not None and not chosen.keys() & _WITH_VERDICT:
        raise OptionError(
            "a verdict goes to TensorBoard, W&B and MLflow: give --against with --tensorboard, "
            "--wandb or --mlflow"
        )
    if noise and against is None:
        raise OptionError("--noise names reruns of the run of --against: give --against, too")


def _compared(
    run: Run, against: str | None, noise: Sequence[str], tensor: Sequence[str] | None, store: str
) -> Comparison | None:
    """Compares the run of `--against` with the exported run; returns None without that option.

    noise: reruns of the run of `--against`, by name, path or URL.
    tensor: selectors of the tensors to compare; None compares all.
    """
    from anchorlib.diagnosis import compare

    if against is None:
        return None
    with progress(f"comparing {against} and {run.name}") as tick:
        return compare(
            without_slash(against),
            run,
            store=store,
            noise=[without_slash(one) for one in noise],
            tensors=tensor or "*",
            progress=tick,
        )


def _series(run: Run, selectors: Sequence[str], selection: Selection) -> list[Series]:
    """Returns the selected series of a run, in all modes unless the selection names a mode.

    Raises UnknownTensorError where no record is selected.
    """
    from anchor_cli.records import narrowed, settled
    from anchorlib.errors import UnknownTensorError

    selection = settled(run, selectors, selection)
    infos = [i for i in run.tensors(*selectors) if selection.mode in (None, i.mode)]
    series = [one for part in narrowed(run, infos, selection) for one in part.series]
    if not series:
        raise UnknownTensorError(f"{run.name} has no record there {selection}".rstrip())
    return series


def _to_zarr(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:
    from anchor_cli.exports import write_zarr

    return write_zarr(exported.run, exported.series, place, tick)


def _to_tensorboard(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:
    from anchor_cli.exports import write_events

    return write_events(exported, place, tick)


def _to_wandb(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:
    from anchor_cli.exports import write_offline

    return write_offline(exported, place, tick)


def _to_mlflow(exported: ExportSource, place: str, tick: Progress) -> dict[str, Any]:
    from anchor_cli.exports import write_tracking

    return write_tracking(exported, place, tick)


def _to_csv(exported: ExportSource, place: str, tick: Progress) -> dict[str, Any]:  # noqa: ARG001
    from anchor_cli.files import written_text
    from anchor_cli.records import write_rows

    with written_text(place) as file:
        rows = _rows(exported.series)
        first = next(rows)
        write_rows(file, [first, first.values()])
        write_rows(file, (row.values() for row in rows))
    return {"csv": place}


def _rows(series: Sequence[Series]) -> Iterator[dict[str, Any]]:
    from anchor_cli.records import summarised

    return (row for one in series for row in summarised(one))


def _to_parquet(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:  # noqa: ARG001
    from anchor_cli.files import written_whole
    from anchorlib.errors import MissingExtraError

    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtraError(
            "--parquet needs pyarrow: pip install 'anchorlib[parquet]', or use --csv"
        ) from None
    tables = [arrow.table(_columns(one, arrow)) for one in exported.series]
    with written_whole(place) as file:
        parquet.write_table(arrow.concat_tables(tables), file)
    return {"parquet": str(place)}


def _columns(series: Series, arrow: Any) -> dict[str, Any]:
    head = {"tensor": series.name, "kind": series.kind, "mode": series.mode, "rank": series.rank}
    fixed = {name: arrow.repeat(value, len(series)) for name, value in head.items()}
    return {**fixed, **dict(series.columns.checked())}


_WITH_VERDICT = {"tensorboard", "wandb", "mlflow"}
_WRITERS: dict[str, Callable[[ExportSource, Any, Progress], dict[str, Any]]] = {
    "tensorboard": _to_tensorboard,
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
    "zarr": _to_zarr,
    "csv": _to_csv,
    "parquet": _to_parquet,
}


def _sentence(said: dict[str, Any]) -> str:
    from anchorlib.names import escape

    where = " and ".join(escape(str(said[name])) for name in _WRITERS if name in said)
    verdict = f" ({said['verdict']})" if "verdict" in said else ""
    lines = " or ".join(map(escape, _looks(said)))
    look = f"; see {lines}" if lines else ""
    return f"{counted(said['records'], 'record')} of {said['run']}{verdict} in {where}{look}"


def _looks(said: dict[str, Any]) -> Iterator[str]:
    """Yields the shell commands that show the exported data, such as `tensorboard --logdir tb`.

    said: the JSON document, which has for each output, such as "tensorboard", where it was written.
    """
    if "tensorboard" in said:
        yield f"tensorboard --logdir {shlex.quote(str(Path(said['tensorboard']).parent))}"
    if "wandb" in said:
        yield f"wandb sync {shlex.join(said['wandb_runs'])}"
    if "mlflow" in said:
        place = said["mlflow"]
        allowed = "" if "://" in place else "MLFLOW_ALLOW_FILE_STORE=true "
        yield f"{allowed}mlflow ui --backend-store-uri {shlex.quote(place)}"
