"""Exports a run as offline runs of Weights & Biases, which `wandb sync` uploads.

Each rank becomes a run of W&B and keeps its step numbers; the axis of a histogram is the exponent.
Nothing is sent, and little about this machine is written: no code, packages or measurements.
"""

from __future__ import annotations

import os
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_cli.exports.export_source import ExportedPoints, ExportSource, Point
from anchorlib.errors import AnchorError, MissingExtraError, OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.progress import Progress
    from anchorlib.summary import Log2Histogram

__all__ = ["write_offline"]

_PROJECT = "anchorlib"
_MOST_BINS = 512  # W&B takes no more
_QUIET = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


def write_offline(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:
    """Writes an offline run of W&B for each rank, below the folder `place`, which is made.

    Returns what the command prints, a dict: `wandb` (the place), `wandb_runs` (the folder of each
    W&B run), and the counts `scalars` and `histograms`. WANDB_ERROR_REPORTING is set to "false" in
    this process, if it is not set. Raises MissingExtraError without the package `wandb`,
    OptionError where the folder cannot be written.

    tick: called, for each rank anew, with the amount done so far and the total.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
    try:
        wandb: Any = import_module("wandb")
    except ImportError:
        raise MissingExtraError(
            "export --wandb needs wandb: pip install 'anchorlib[wandb]', or use --csv"
        ) from None
    total = ExportedPoints()
    runs: list[str] = []
    try:
        # Made here, because W&B silently writes elsewhere where it cannot write.
        (place / "wandb").mkdir(parents=True, exist_ok=True)
        for rank in exported.ranks:
            written, folder = _write_rank(exported, rank, place, tick, wandb)
            total, runs = total.add(written), [*runs, folder]
    except AnchorError:  # an error of the store that is read; some of these are OSErrors, too
        raise
    except (OSError, wandb.Error) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise OptionError(f"cannot write {escape(str(place))}: {escape(reason)}") from None
    return {"wandb": str(place), "wandb_runs": runs, **total._asdict()}


def _write_rank(
    exported: ExportSource, rank: int, place: Path, tick: Progress, wandb: Any
) -> tuple[ExportedPoints, str]:
    run = wandb.init(
        mode="offline",
        dir=str(place),
        project=_PROJECT,
        name=exported.title(rank),
        group=exported.run,
        config={"anchor_run": exported.run, "rank": rank},
        settings=wandb.Settings(**_QUIET),
    )
    code = 1
    try:  # no `with run`, which would print a traceback for an error
        written = _fill(exported, rank, run, tick, wandb)
        code = 0
    finally:
        run.finish(exit_code=code)
    return written, str(Path(run.dir).parent)


def _fill(
    exported: ExportSource, rank: int, run: Any, tick: Progress, wandb: Any
) -> ExportedPoints:
    written = ExportedPoints()
    for step, together in groupby(exported.points(rank, tick), key=lambda point: point.step):
        row: dict[str, Any] = {}
        for point in together:
            row.setdefault("_timestamp", point.time)
            row[point.tag] = _value(point, wandb)
            written = written.plus(point)
        run.log(row, step=step)
    if (verdict := exported.verdict(rank)) is not None:
        known = {**verdict.texts, **verdict.numbers}
        run.summary.update({f"anchor/{name}": value for name, value in known.items()})
    return written


def _value(point: Point, wandb: Any) -> Any:
    if isinstance(point.value, float):
        return point.value
    return wandb.Histogram(np_histogram=_bins(point.value))


def _bins(histogram: Log2Histogram) -> tuple[list[int], list[int]]:
    """Converts a histogram to W&B's counts and bin edges, over exponents.

    W&B takes at most 512 bins. So each bin holds the same number of exponents: the smallest power
    of two with which the bins suffice.
    """
    first, stop = min(histogram.bins), max(histogram.bins) + 1
    width = 1
    while stop - first > width * _MOST_BINS:
        width *= 2
    edges = list(range(first, stop + width, width))[: -(-(stop - first) // width) + 1]
    counts = [0] * (len(edges) - 1)
    for exponent, count in histogram.bins.items():
        counts[(exponent - first) // width] += count
    return counts, edges
