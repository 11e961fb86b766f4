"""The answer of `anchor hist` for an archived run, from the run's index; no rank is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anchor_cli.arguments import Selection
from anchor_cli.histograms.histogram_report import HistogramReport
from anchor_cli.histograms.measured import MeasuredHistogram, pooled
from anchor_cli.records import named

if TYPE_CHECKING:
    from anchorlib import Run

__all__ = ["answer_of_index"]


def answer_of_index(
    run: Run, selectors: Sequence[str], selection: Selection
) -> HistogramReport | None:
    """Returns the histograms of the selected tensors from the run's index.

    Returns None where the index is not enough: where the run has no index, where the options select
    only some of a tensor's records, where the run has gaps (observations that were not recorded),
    and where values carry loss scales, about which `anchor hist` prints a remark.

    Raises UnknownTensorError for a selector that names no tensor, AmbiguousTensorError for a tensor
    of several modes where the selection has none, OptionError for a mode that no tensor has.
    """
    if selection != Selection(mode=selection.mode) or run.gaps():
        return None
    infos = named(run, selectors, selection, gradients=True)
    series = [run.whole_series(info) for info in infos]
    parts = [
        MeasuredHistogram(
            run=run.name,
            tensor=one.name,
            kind=one.kind,
            first_step=one.first_step,
            last_step=one.last_step,
            records=one.records,
            histogram=one.histogram,
        )
        for one in series
        if one is not None and one.scales == (1.0,)
    ]
    if len(parts) < len(infos):
        return None
    dtypes = list(dict.fromkeys(info.dtype for info in infos))
    return HistogramReport(pooled(parts, selectors), parts, dtypes, None)
