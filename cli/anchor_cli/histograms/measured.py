"""Counts histograms of selected records, and which shares a narrower number format would lose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from anchor_cli.records import SelectedRecords
from anchorlib import Series
from anchorlib.reading import MapFunction, map_blocks
from anchorlib.summary import Log2Histogram, Shares, scales_for, shares_as

__all__ = ["MeasuredHistogram", "NarrowFormat", "measured", "pooled"]


@dataclass(frozen=True, slots=True)
class NarrowFormat:
    """The number format of `--as`, with the factor of `--scale`.

    Values are multiplied by the factor before they would be stored in the format.
    """

    fmt: str
    scale: float = 1.0

    def __str__(self) -> str:
        return self.fmt if self.scale == 1 else f"{self.fmt}, times {self.scale:g}"


@dataclass(frozen=True, slots=True)
class MeasuredHistogram:
    """A counted histogram, of one tensor, or of several tensors pooled.

    tensor, kind: the tensor's name and kind. For several tensors, the selectors that the user gave,
        and the kind that all these tensors have; None if they have several kinds.
    first_step, last_step: the first and the last step with a counted record.
    records: how many records were counted.
    shares: which shares of the elements would underflow, become subnormal or overflow in the format
        of `--as`; None without that option.
    """

    run: str
    tensor: str
    kind: str | None
    first_step: int
    last_step: int
    records: int
    histogram: Log2Histogram
    shares: Shares | None = None

    def document(self, target: NarrowFormat | None) -> dict[str, object]:
        """Returns the histogram as an object of the JSON document.

        target: the format of `--as`, for which shares and a suggested scale are added; None without
            that option.
        """
        about: dict[str, object] = {
            "run": self.run,
            "tensor": self.tensor,
            "kind": self.kind,
            "first_step": self.first_step,
            "last_step": self.last_step,
            **self.histogram.to_dict(),
        }
        if target is None or self.shares is None:
            return about
        asked = {"as": target.fmt, "scale": target.scale, "shares_exact": self.shares.exact}
        scales = scales_for(self.histogram, target.fmt)
        suggested = {"suggested_scale": None if scales is None else scales.to_dict()}
        return {**about, **asked, **self.shares.to_dict(), **suggested}


def measured(
    parts: Sequence[SelectedRecords], run: str, target: NarrowFormat | None, over: MapFunction
) -> list[MeasuredHistogram]:
    """Counts the histogram of each selected tensor, over all its ranks.

    Returns one result for each of `parts`, in their order.

    parts: the selected records of each tensor. run: the run's name.
    target: the format of `--as`; with None no shares are counted.
    over: the map function by which blocks of records are counted.
    """
    every = [one for part in parts for one in part.series]
    histograms = [
        Log2Histogram.pooled(of_blocks) for of_blocks in map_blocks(Series.histogram, every, over)
    ]
    shares = None if target is None else _shares(every, histograms, target, over)
    tensors, at = [], 0
    for part in parts:
        own = slice(at, at + len(part.series))
        at = own.stop
        tensors.append(
            MeasuredHistogram(
                run=run,
                tensor=part.info.name,
                kind=part.info.kind,
                first_step=part.first_step,
                last_step=part.last_step,
                records=part.records,
                histogram=Log2Histogram.pooled(histograms[own]),
                shares=None if shares is None else sum(shares[own], Shares()),
            )
        )
    return tensors


def pooled(parts: Sequence[MeasuredHistogram], selectors: Sequence[str]) -> MeasuredHistogram:
    """Returns the sum of several histograms; a single histogram is returned as it is.

    parts: the histograms, at least one.
    selectors: the selectors of tensors that the user gave; they become the name of the sum.
    """
    if len(parts) == 1:
        return parts[0]
    kinds = {part.kind for part in parts}
    shares = [part.shares for part in parts if part.shares is not None]
    return MeasuredHistogram(
        run=parts[0].run,
        tensor=", ".join(selectors),
        kind=kinds.pop() if len(kinds) == 1 else None,
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        records=sum(part.records for part in parts),
        histogram=Log2Histogram.pooled(part.histogram for part in parts),
        shares=sum(shares, Shares()) if shares else None,
    )


def _shares(
    every: Sequence[Series],
    histograms: Sequence[Log2Histogram],
    target: NarrowFormat,
    over: MapFunction,
) -> list[Shares]:
    """Returns for each series the shares of its elements that the format `target` would lose.

    The shares come from the series' histogram where that gives them exactly, else record by record
    from the values, or from a record's histogram where its values were not kept.

    every: the series. histograms: the histogram of each of these series.
    """
    shares = [shares_as(one, target.fmt, target.scale) for one in histograms]
    inexact = [at for at, one in enumerate(shares) if not one.exact]
    asked = partial(_of_each, target)
    for at, of_blocks in zip(
        inexact, map_blocks(asked, [every[at] for at in inexact], over), strict=True
    ):
        # Summed record by record: floating-point sums of fractions depend on the order, and the
        # answer must not depend on how the blocks were cut.
        shares[at] = sum((one for block in of_blocks for one in block), Shares())
    return shares


def _of_each(target: NarrowFormat, series: Series) -> list[Shares]:
    return list(_of_records(target, series))


def _of_records(target: NarrowFormat, series: Series) -> Iterator[Shares]:
    for record in series.records():
        if record.raw is not None:
            yield shares_as(record.raw, target.fmt, target.scale, dtype=record.dtype)
        elif record.summary is not None:
            yield shares_as(record.summary.histogram, target.fmt, target.scale)
