"""Exports a run to MLflow: scalars as metrics, histograms as artifacts, the verdict as tags.

MLflow has no histograms: the artifact `histograms/grad log2/fc1.bias.jsonl` has a line for each
record, with its step, its time and its bins by exponent. MLflow allows few characters in the name
of a metric: others become underscores, and a hash at the end keeps such names apart.

A folder becomes a file store of MLflow, which MLflow opens where MLFLOW_ALLOW_FILE_STORE=true is
set; a place with `://` is passed to MLflow as a tracking URI.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_cli.exports.export_source import ExportedPoints, ExportSource, Point
from anchor_cli.terminal import plain
from anchorlib.errors import AnchorError, MissingExtraError, OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.progress import Progress

__all__ = ["write_tracking"]

_EXPERIMENT = "anchorlib"
_BATCH = 1000  # metrics that one call of MLflow takes at most
_LONGEST = 120
_OTHER = re.compile(r"[^A-Za-z0-9_\-. ]")
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # with more, a missing server costs minutes
    "GIT_PYTHON_REFRESH": "quiet",
}


def write_tracking(exported: ExportSource, place: str, tick: Progress) -> dict[str, Any]:
    """Writes an MLflow run for each rank into the experiment `anchorlib`.

    Returns what the command prints, a dict: `mlflow` (the place), `mlflow_runs` (the ids of the
    MLflow runs), and the counts `scalars` and `histograms`. Some environment variables of MLflow
    are set in this process, where they are not set already. Raises MissingExtraError without the
    package `mlflow`, OptionError where MLflow cannot write.

    place: a folder or a tracking URI.
    tick: called, for each rank anew, with the amount done so far and the total.
    """
    # Set first: mlflow reads them when it is imported, or later.
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        mlflow: Any = import_module("mlflow")
    except ImportError:
        raise MissingExtraError(
            "export --mlflow needs mlflow: pip install 'anchorlib[mlflow]', or use --csv"
        ) from None
    uri = place if "://" in place else str(Path(place).absolute())
    total = ExportedPoints()
    runs: list[str] = []
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(_EXPERIMENT)
        experiment = known.experiment_id if known else client.create_experiment(_EXPERIMENT)
        for rank in exported.ranks:
            written, run = _write_rank(exported, rank, client, experiment, tick)
            total, runs = total.add(written), [*runs, run]
    except AnchorError:  # an error of the store that is read; some of these are OSErrors, too
        raise
    except (OSError, ImportError, mlflow.MlflowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OptionError(f"cannot write {escape(place)}: {escape(reason)}") from None
    return {"mlflow": place, "mlflow_runs": runs, **total._asdict()}


def _write_rank(
    exported: ExportSource, rank: int, client: Any, experiment: str, tick: Progress
) -> tuple[ExportedPoints, str]:
    tags = {"anchor.run": exported.run, "anchor.rank": str(rank)}
    if (verdict := exported.verdict(rank)) is not None:
        tags |= {f"anchor.{name}": value for name, value in verdict.texts.items()}
        tags |= {f"anchor.{name}": str(value) for name, value in verdict.numbers.items()}
    run = client.create_run(experiment, tags=tags, run_name=exported.title(rank)).info.run_id
    status = "FAILED"
    try:
        written = _fill(exported, rank, client, run, tick)
        status = "FINISHED"
    finally:
        client.set_terminated(run, status)
    return written, run


def _fill(
    exported: ExportSource, rank: int, client: Any, run: str, tick: Progress
) -> ExportedPoints:
    written = ExportedPoints()
    with tempfile.TemporaryDirectory() as folder:
        points = exported.points(rank, tick)
        while batch := list(islice(points, _BATCH)):
            client.log_batch(run, metrics=list(_metrics(batch)))
            for point in batch:
                written = written.plus(point)
                _add_histogram(Path(folder), point)
        if exported.comparison is not None and exported.verdict(rank) is not None:
            text = json.dumps(plain(exported.comparison.to_dict()), allow_nan=False)
            (Path(folder) / "comparison.json").write_text(text, encoding="utf-8")
        client.log_artifacts(run, folder)
    return written


def _metrics(points: list[Point]) -> Iterator[Any]:
    metric: Any = import_module("mlflow.entities").Metric
    for point in points:
        if isinstance(point.value, float):
            yield metric(_key(point), point.value, int(point.time * 1000), point.step)


def _add_histogram(folder: Path, point: Point) -> None:
    if isinstance(point.value, float):
        return
    file = folder / "histograms" / f"{_key(point)}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    line = {"step": point.step, "time": point.time, "tensor": point.name, **point.value.to_dict()}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(line)}\n")


def _key(point: Point) -> str:
    """Returns a point's tag in the characters that MLflow allows, as "group/name".

    Where characters had to be replaced, a hash of the tag is appended, so that no two tags become
    equal.
    """
    parts = [_OTHER.sub("_", one).strip(". ")[:_LONGEST] or "_" for one in point[:2]]
    if parts != [*point[:2]]:
        parts[1] += f" {hashlib.sha256(point.tag.encode()).hexdigest()[:8]}"
    return "/".join(parts)
