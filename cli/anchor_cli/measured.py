"""Histograms of what was selected, and what a narrower format would do to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anchor_cli.selected import Selected
from anchorlib.summary import Log2Histogram, Shares, scales_for, shares_as

if TYPE_CHECKING:
    from anchorlib import Series

__all__ = ["Measured", "Target", "measured", "pooled"]


@dataclass(frozen=True, slots=True)
class Target:
    """The format of --as, and what values are multiplied by before they are stored in it."""

    fmt: str
    scale: float = 1.0

    def __str__(self) -> str:
        return self.fmt if self.scale == 1 else f"{self.fmt}, times {self.scale:g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One histogram: of one tensor, or pooled.

    tensor, kind: its name and kind; pooled, the selectors, and the kind if all have the same.
    shares: what --as asks, None without it.
    """

    run: str
    tensor: str
    kind: str | None
    first_step: int
    last_step: int
    records: int
    histogram: Log2Histogram
    shares: Shares | None = None

    def document(self, target: Target | None) -> dict[str, object]:
        """As JSON has it."""
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
        found = scales_for(self.histogram, target.fmt)
        suggested = {"suggested_scale": None if found is None else found.to_dict()}
        return {**about, **asked, **self.shares.to_dict(), **suggested}


def measured(part: Selected, run: str, target: Target | None) -> Measured:
    """The histogram of one tensor, all its ranks together."""
    shares = (
        None if target is None else sum((_shares(one, target) for one in part.series), Shares())
    )
    return Measured(
        run=run,
        tensor=part.info.name,
        kind=part.info.kind,
        first_step=part.first_step,
        last_step=part.last_step,
        records=part.records,
        histogram=Log2Histogram.pooled(one.histogram() for one in part.series),
        shares=shares,
    )


def pooled(parts: Sequence[Measured], selectors: Sequence[str]) -> Measured:
    """All of them as one; a single one stays itself."""
    if len(parts) == 1:
        return parts[0]
    kinds = {part.kind for part in parts}
    shares = [part.shares for part in parts if part.shares is not None]
    return Measured(
        run=parts[0].run,
        tensor=", ".join(selectors),
        kind=kinds.pop() if len(kinds) == 1 else None,
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        records=sum(part.records for part in parts),
        histogram=Log2Histogram.pooled(part.histogram for part in parts),
        shares=sum(shares, Shares()) if shares else None,
    )


def _shares(series: Series, target: Target) -> Shares:
    """From the histogram where that is exact, else from the values that were kept."""
    shares = shares_as(series.histogram(), target.fmt, target.scale)
    return shares if shares.exact else sum(_of_each(series, target), Shares())


def _of_each(series: Series, target: Target) -> Iterator[Shares]:
    for record in series.records():
        if record.raw is not None:
            yield shares_as(record.raw, target.fmt, target.scale, dtype=record.dtype)
        elif record.summary is not None:
            yield shares_as(record.summary.histogram, target.fmt, target.scale)
