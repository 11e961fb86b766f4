"""What `anchor export` writes to TensorBoard, W&B and MLflow alike: points, and a verdict.

A point is a value under a tag at a step:

    value/loss               the value of a tensor of one number
    grad l2/fc1.bias         the norm of any other tensor
    grad log2/fc1.bias       the histogram of its exponents, so that a bin is a power of two
    vs eager differing/grad  with --against: how many records of that kind differ at that step
    vs eager eps/grad        the median of these differences, in units of rounding

The writer for each tool gets the points of one rank in the order of their steps, and the verdict as
texts and numbers. It only decides how the tool shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib import Series
    from anchorlib.diagnosis import Comparison
    from anchorlib.progress import Progress
    from anchorlib.summary import Log2Histogram

__all__ = ["ExportSource", "ExportedPoints", "ExportedVerdict", "Point"]

_AT_ONCE = 4096  # records whose histograms are held in memory


class Point(NamedTuple):
    """One number or histogram under a tag at a step.

    A point about a comparison has the time of another point of its step.

    group, name: the two parts of the tag.
    time: when the record was made, in seconds since the epoch.
    """

    group: str
    name: str
    step: int
    time: float
    value: float | Log2Histogram

    @property
    def tag(self) -> str:
        """The tag, as "grad l2/fc1.bias": the tools group tags by the part before the slash."""
        return f"{self.group}/{self.name}"


class ExportedVerdict(NamedTuple):
    """The verdict of a comparison, for a writer.

    texts: "against" (the other run's name), "verdict", and "sentence" (the verdict as a sentence).
    numbers: the comparison's counts of records, such as how many differ, by name.
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, int]


class ExportedPoints(NamedTuple):
    """How many points were written: numbers (scalars) and histograms."""

    scalars: int = 0
    histograms: int = 0

    def plus(self, point: Point) -> ExportedPoints:
        """Returns the counts with `point` added, as a scalar or as a histogram."""
        if isinstance(point.value, float):
            return self._replace(scalars=self.scalars + 1)
        return self._replace(histograms=self.histograms + 1)

    def add(self, other: ExportedPoints) -> ExportedPoints:
        """Returns the sums: the scalars of both, and the histograms of both."""
        return ExportedPoints(self.scalars + other.scalars, self.histograms + other.histograms)


@dataclass(frozen=True)
class ExportSource:
    """What is to be exported of a run: the selected series, and a comparison with another run.

    comparison: of another run (as A) with the exported run (as B); None without --against.
    """

    run: str
    series: Sequence[Series]
    comparison: Comparison | None = None
    _growth: dict[int, list[Point]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for point in _growth_of(self.comparison) if self.comparison else ():
            self._growth.setdefault(point.step, []).append(point)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have selected records, ascending; each becomes a run in the other tool."""
        return sorted({one.rank for one in self.series})

    def title(self, rank: int) -> str:
        """Returns the name that a rank gets in the other tool.

        That is the run's name; where several ranks are exported, the rank is added: "run1 rank 3".
        """
        return self.run if len(self.ranks) == 1 else f"{self.run} rank {rank}"

    def verdict(self, rank: int) -> ExportedVerdict | None:
        """Returns the comparison's verdict if `rank` is the first exported rank; else None.

        The verdict is about all ranks together, and so is written once. None also where there is no
        comparison.
        """
        return (
            None
            if self.comparison is None or rank != self.ranks[0]
            else _verdict_of(self.comparison)
        )

    def points(self, rank: int, tick: Progress) -> Iterator[Point]:
        """Yields all points of one rank in the order of steps.

        For the first exported rank, the comparison's points are among them, at those steps where
        the rank has points of its own.

        tick: called with the number of step ranges that are done, and their total number.
        """
        labelled = [(one, _several(one)) for one in self.series if one.rank == rank]
        spans = _spans([one for one, _ in labelled])
        first = rank == self.ranks[0]
        for done, steps in enumerate(spans):
            tick(done, len(spans))
            points = [point for one, several in labelled
                      for point in _points(one.where(steps=steps), several)]  # fmt: skip
            points.sort(key=_step)
            for step, together in groupby(points, key=_step):
                those = list(together)
                yield from those
                for growth in self._growth.get(step, ()) if first else ():
                    yield growth._replace(time=those[0].time)


def _step(point: Point) -> int:
    return point.step


def _spans(series: Sequence[Series]) -> list[range]:
    """Returns ranges of steps that follow each other and cover all records of some series.

    A range has some thousand records, or more where there are many series.
    """
    steps, counts = np.unique(
        np.concatenate([one.columns["step"] for one in series]), return_counts=True
    )
    # Each range searches every series: with many series a range needs more records to be worth it.
    most = max(_AT_ONCE, 4 * len(series))
    chunk = np.cumsum(counts) // most
    starts = steps[np.flatnonzero(np.diff(chunk, prepend=-1))].tolist()
    return [range(first, stop) for first, stop in
            zip(starts, [*starts[1:], int(steps[-1]) + 1], strict=True)]  # fmt: skip


def _several(series: Series) -> list[str]:
    """Returns which of "pass_index", "call" and "phase" have several values in a series.

    The values of these columns become part of a point's name, so that the points of one step have
    different names.
    """
    columns = series.columns
    return [name for name in ("pass_index", "call", "phase")
            if len(set(columns[name].tolist())) > 1]  # fmt: skip


def _points(series: Series, several: Sequence[str]) -> Iterator[Point]:
    shapes = series.shapes
    if not shapes:
        return
    columns, kept = series.columns.checked(), series.kept.tolist()
    kind = escape(series.kind if series.mode == "all" else f"{series.kind} {series.mode}")
    steps, norms = columns["step"].tolist(), columns["l2"].tolist()
    times = (columns["time_ns"] / 1e9).tolist()
    words = {name: columns[name].tolist() for name in several}
    histograms = series.histograms() if any(shapes) else []
    for at, shape in enumerate(shapes):
        where = "".join(f" {name.removesuffix('_index')} {words[name][at]}" for name in several)
        place = (escape(f"{series.name}{where}"), steps[at], times[at])
        if shape == ():
            yield Point(kind, *place, _only(series, at, kept=kept[at]))
            continue
        yield Point(f"{kind} l2", *place, norms[at])
        if histograms[at].bins:
            yield Point(f"{kind} log2", *place, histograms[at])


def _only(series: Series, at: int, *, kept: bool) -> float:
    """Returns the value of a record that holds one number; of a complex number, the real part.

    Where the value was not kept, returns the sum in the record's summary, or NaN where the value
    was not finite.

    at: the record's position in the series. kept: whether the record has its value.
    """
    if kept:
        return float(series.record(at).array.real)
    odd = series.columns["nan"][at] or series.columns["inf"][at]
    return float("nan") if odd else float(series.columns["sum"][at])


def _verdict_of(comparison: Comparison) -> ExportedVerdict:
    texts = {
        "against": comparison.a,
        "verdict": comparison.verdict,
        "sentence": comparison.sentence,
    }
    counts = comparison.to_dict()["counts"]
    return ExportedVerdict({name: escape(text) for name, text in texts.items()}, counts)


def _growth_of(comparison: Comparison) -> Iterator[Point]:
    """Yields points that show how the differences of a comparison grow from step to step.

    Their steps are those of the exported run; their times are 0 and have to be set.
    """
    group = f"vs {escape(comparison.a)}"
    for one in comparison.growth:
        place = (escape(one.kind), one.step + comparison.step_offset, 0.0)
        yield Point(f"{group} differing", *place, float(one.differing))
        if one.median_error_eps is not None:
            yield Point(f"{group} eps", *place, float(one.median_error_eps))
