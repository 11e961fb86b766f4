"""A run as TensorBoard's event files: scalars, norms, and histograms over powers of two.

    value/loss               a tensor of one number, its value; grad l2/fc1.bias: any other's norm
    grad log2/fc1.bias       its histogram: the axis is the exponent, so a bin is a power of two

One file a rank, whose name is always the same, so that a second export takes the first's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anchor_cli.files import written_whole
from anchorlib.errors import MissingExtraError, OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchor_cli.progress import Tick
    from anchorlib import Series
    from anchorlib.summary import Log2Histogram

__all__ = ["Written", "write_events"]

_FILE = "events.out.tfevents.0.anchorlib"


class Written(NamedTuple):
    """How much was written."""

    scalars: int
    histograms: int


class _Place(NamedTuple):
    """What one record is called there, and when it was made."""

    kind: str
    name: str
    step: int
    time: float


def write_events(series: Iterable[Series], folder: Path, tick: Tick) -> Written:
    """Write these series of one rank below `folder`, which is made.

    Raises MissingExtraError without the package `tensorboard`, OptionError where `folder` cannot be
    made or written.
    """
    protos = _Protos()
    total = Written(0, 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"cannot make {escape(str(folder))}: {reason}") from None
    with written_whole(folder / _FILE) as file:
        writer = protos.writer(file)
        writer.write(protos.event(file_version="brain.Event:2").SerializeToString())
        every = list(series)
        for done, one in enumerate(every):
            tick(done, len(every))
            added = _write_one(one, writer, protos)
            total = Written(*(sum(pair) for pair in zip(total, added, strict=True)))
    return total


class _Protos:
    """The classes of the package."""

    def __init__(self) -> None:
        try:
            self.event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
            self.summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
            self.histogram: Any = import_module(
                "tensorboard.compat.proto.summary_pb2"
            ).HistogramProto
            self.writer: Any = import_module(
                "tensorboard.summary.writer.record_writer"
            ).RecordWriter
        except ImportError:
            raise MissingExtraError(
                "export --tensorboard needs tensorboard: pip install 'anchorlib[tensorboard]', or "
                "use --csv"
            ) from None

    def encoded(self, place: _Place, suffix: str, **value: Any) -> bytes:
        """One event with one value; its tag's part before the slash is TensorBoard's group."""
        one = self.summary.Value(tag=f"{place.kind}{suffix}/{place.name}", **value)
        summary = self.summary(value=[one])
        event = self.event(wall_time=place.time, step=place.step, summary=summary)
        encoded: bytes = event.SerializeToString()
        return encoded


def _write_one(series: Series, writer: Any, protos: _Protos) -> Written:
    binned = 0
    histograms = series.histograms()
    norms = series.columns["l2"].tolist()
    shapes, kept = series.shapes, series.kept.tolist()
    for at, place in enumerate(_places(series)):
        if shapes[at] == ():
            number = _only(series, at, kept=kept[at])
            writer.write(protos.encoded(place, "", simple_value=number))
            continue
        writer.write(protos.encoded(place, " l2", simple_value=norms[at]))
        if histograms[at].bins:
            bins = protos.histogram(**_bins(histograms[at]))
            writer.write(protos.encoded(place, " log2", histo=bins))
            binned += 1
    return Written(len(series), binned)


def _places(series: Series) -> Iterator[_Place]:
    """Names tell passes, calls and phases apart where there are several."""
    columns = series.columns
    parts = {"pass": columns["pass_index"], "call": columns["call"], "phase": columns["phase"]}
    several = {word: column for word, column in parts.items() if len(set(column.tolist())) > 1}
    kind = escape(series.kind if series.mode == "all" else f"{series.kind} {series.mode}")
    steps, times = columns["step"].tolist(), columns["time_ns"].tolist()
    for at in range(len(series)):
        where = "".join(f" {word} {column[at]}" for word, column in several.items())
        yield _Place(kind, escape(f"{series.name}{where}"), steps[at], times[at] / 1e9)


def _only(series: Series, at: int, *, kept: bool) -> float:
    """The value of a tensor of one number; of that of a summary alone, its sum if it is finite."""
    if kept:
        return float(series.record(at).array.real)
    odd = series.columns["nan"][at] or series.columns["inf"][at]
    return float("nan") if odd else float(series.columns["sum"][at])


def _bins(histogram: Log2Histogram) -> dict[str, Any]:
    """Every exponent from the first to the last, those without elements too."""
    exponents = range(min(histogram.bins), max(histogram.bins) + 1)
    counts = [histogram.bins.get(exponent, 0) for exponent in exponents]
    middle = [(exponent + 0.5, count) for exponent, count in zip(exponents, counts, strict=True)]
    return {
        "min": exponents[0],
        "max": exponents[-1] + 1,
        "num": sum(counts),
        "sum": sum(at * count for at, count in middle),
        "sum_squares": sum(at * at * count for at, count in middle),
        "bucket_limit": [exponent + 1 for exponent in exponents],
        "bucket": counts,
    }
