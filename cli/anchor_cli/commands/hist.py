"""`anchor hist`: how many elements have each exponent, and which number formats could hold them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchor_cli.arguments import (
    DaskOption,
    JsonOption,
    RunArgument,
    Selection,
    StoreOption,
    TensorOption,
    complete,
    examples,
    narrowing,
    spread_over,
)
from anchor_cli.terminal import document, emit, note, this_screen

if TYPE_CHECKING:
    from anchor_cli.histograms import HistogramReport, NarrowFormat
    from anchor_cli.records import SelectedRecords
    from anchorlib.reading import Run

__all__ = ["EXAMPLES", "show_histogram"]

EXAMPLES = examples(
    "anchor hist run1 --tensor fc2.bias",
    "anchor hist run1 --tensor 'fc*@grad' --step 0:100 -o gradients.png",
    "anchor hist run1 --tensor fc2.weight --as fp16 --scale 1024 --json",
)


@narrowing
def show_histogram(  # noqa: PLR0913  # one parameter for each option
    run: RunArgument,
    *,
    tensor: TensorOption,
    as_format: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="Show the shares of elements that would underflow, become subnormal or overflow "
            "in this format: fp16, bf16, e4m3 or e5m2.",
            autocompletion=complete.formats,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale", metavar="S", help="With --as: multiply values by S first, as AMP does."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write: .png, .html, .csv or .json."
        ),
    ] = None,
    selection: Selection,
    dask: DaskOption = None,
    store: StoreOption = "anchors",
    as_json: JsonOption = False,
) -> int:
    """Draw the log2 histogram of gradients, or of any other kind of tensor.

    A selector without @kind means the gradient: grad, else pass_grad. Several tensors are pooled
    into one histogram, and each is also shown by itself below it.
    """
    from anchor_cli.files import by_suffix, written_whole
    from anchor_cli.histograms import WRITERS
    from anchor_cli.records import answered, lost, settled
    from anchorlib.reading import open_run

    target = _target(as_format, scale)
    # A wrong suffix is refused before anything is read.
    write = None if output is None else by_suffix(output, WRITERS)
    opened = open_run(run, store=store)
    selection = settled(opened, tensor, selection)
    answer, chosen = _answered(opened, tensor, selection, target, dask)
    if output is not None and write is not None:
        with written_whole(output) as file:
            write(answer, file)
    if as_json:
        document(answer.document())
    elif output is None:
        emit(answer.lines(this_screen()))
    if remark := _scales(chosen) or _carried(chosen, target):
        note(remark)
    return answered(lost(opened, tensor, chosen, selection) if chosen else "")


def _answered(
    opened: Run,
    tensor: Sequence[str],
    selection: Selection,
    target: NarrowFormat | None,
    dask: str | None,
) -> tuple[HistogramReport, list[SelectedRecords]]:
    """Counts the histogram of the selected records; returns the answer and these records.

    The records are [] where the index of an archived run has the answer: then no record is read.
    The index is asked only without `--as` and `--dask`.

    tensor: the selectors of tensors.
    target: the format of `--as`; None without that option.
    dask: the address of `--dask`; None without that option.
    """
    from anchor_cli.histograms import HistogramReport, answer_of_index
    from anchor_cli.records import selected

    if target is None and dask is None:
        answer = answer_of_index(opened, tensor, selection)
        if answer is not None:
            return answer, []
    chosen = selected(opened, tensor, selection, gradients=True)
    with spread_over(dask) as over:
        return HistogramReport.of(chosen, opened.name, tensor, target, over), chosen


def _scales(chosen: Sequence[SelectedRecords]) -> str:
    """Returns a remark where values of different loss scales were counted together; else ""."""
    mixed = [one for one in chosen if len(one.scales) > 1]
    scales = {scale for one in mixed or chosen for scale in one.scales}
    if len(scales) < 2:
        return ""
    titles = ", ".join(one.title for one in mixed[:5]) or "what was pooled"
    more = f" and {len(mixed) - 5} more" if len(mixed) > 5 else ""
    return (
        f"loss scales from {min(scales):.10g} to {max(scales):.10g} are counted together in "
        f"{titles}{more}, so equal bins are not equal gradients: narrow it with --step, as "
        "`anchor stats` shows the scales"
    )


def _carried(chosen: Sequence[SelectedRecords], target: NarrowFormat | None) -> str:
    """Returns a remark where a scale is suggested for values that already carry a loss scale.

    Returns "" where no scale is suggested, and where no record has a loss scale other than 1.

    chosen: the counted records.
    target: the format of `--as`; without that option, None, no scale is suggested.
    """
    scales = {scale for one in chosen for scale in one.scales} - {1.0}
    if target is None or not scales:
        return ""
    return (
        f"the counted values carry a loss scale of {scales.pop():.10g} already: multiply it by a "
        "suggested scale"
    )


def _target(fmt: str | None, scale: str | None) -> NarrowFormat | None:
    """Parses the values of `--as` and `--scale`; returns None without --as.

    Raises OptionError for a scale without --as, and for a value that is no scale or no format.
    """
    from anchor_cli.histograms import NarrowFormat
    from anchorlib.errors import OptionError
    from anchorlib.summary import Log2Histogram, shares_as

    if fmt is None:
        if scale is not None:
            raise OptionError("--scale multiplies values before --as: give both options")
        return None
    try:
        target = NarrowFormat(fmt, 1.0 if scale is None else float(scale))
    except ValueError:
        raise OptionError(f"--scale {scale!r}: give a number, as in --scale 1024") from None
    # Raises for an unknown format, with the choices.
    shares_as(Log2Histogram(), target.fmt, target.scale)
    return target
