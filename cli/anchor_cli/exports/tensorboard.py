"""Exports a run as event files of TensorBoard: scalars, histograms, and the verdict as a text.

Each rank has one file, whose name is always the same, so that a second export replaces the first.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_cli.exports.export_source import ExportedPoints, ExportedVerdict, ExportSource, Point
from anchor_cli.files import written_whole
from anchorlib.errors import MissingExtraError, OptionError
from anchorlib.names import escape

if TYPE_CHECKING:
    from anchorlib.progress import Progress
    from anchorlib.summary import Log2Histogram

__all__ = ["write_events"]

_FILE = "events.out.tfevents.0.anchorlib"


def write_events(exported: ExportSource, place: Path, tick: Progress) -> dict[str, Any]:
    """Writes an event file into the folder of the run, or for several ranks into a folder each.

    The folder of the run is `place`/RUN; several ranks have the folders rank0, rank1 and so on in
    it. TensorBoard shows each folder as a run. Returns what the command prints, a dict:
    `tensorboard` (the folder of the run), and the counts `scalars` and `histograms`. Raises
    MissingExtraError without the package `tensorboard`, OptionError where a folder cannot be made
    or written.

    place: TensorBoard's log directory.
    tick: called, for each rank anew, with the amount done so far and the total.
    """
    protos, ranks, total = _Protos(), exported.ranks, ExportedPoints()
    folder = place / exported.run
    for rank in ranks:
        events = folder / f"rank{rank}" if len(ranks) > 1 else folder
        total = total.add(_write_rank(exported, rank, events, protos, tick))
    return {"tensorboard": str(folder), **total._asdict()}


def _write_rank(
    exported: ExportSource, rank: int, folder: Path, protos: _Protos, tick: Progress
) -> ExportedPoints:
    written = ExportedPoints()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"cannot make {escape(str(folder))}: {reason}") from None
    with written_whole(folder / _FILE) as file:
        writer = protos.writer(file)
        writer.write(protos.event(file_version="brain.Event:2").SerializeToString())
        verdict = exported.verdict(rank)
        for point in exported.points(rank, tick):
            if verdict is not None:  # the verdict gets the first point's step and time
                writer.write(protos.text(verdict, point))
                verdict = None
            writer.write(protos.encoded(point))
            written = written.plus(point)
    return written


class _Protos:
    """TensorBoard's protobuf classes, and what makes messages of them.

    Making the object imports the classes; raises MissingExtraError without `tensorboard`.
    """

    def __init__(self) -> None:
        try:
            self.event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
            self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
            self._tensors: Any = import_module("tensorboard.compat.proto.tensor_pb2")
            self._types: Any = import_module("tensorboard.compat.proto.types_pb2")
            self.writer: Any = import_module(
                "tensorboard.summary.writer.record_writer"
            ).RecordWriter
        except ImportError:
            raise MissingExtraError(
                "export --tensorboard needs tensorboard: pip install 'anchorlib[tensorboard]', or "
                "use --csv"
            ) from None

    def encoded(self, point: Point) -> bytes:
        """Returns a serialized event with the value of a point."""
        if isinstance(point.value, float):
            return self._event(point.tag, point, simple_value=point.value)
        bins = self._summaries.HistogramProto(**_bins(point.value))
        return self._event(point.tag, point, histo=bins)

    def text(self, verdict: ExportedVerdict, at: Point) -> bytes:
        """Returns a serialized event with the verdict, for TensorBoard's text dashboard.

        at: the point whose step and time the event gets.
        """
        lines = [verdict.texts["verdict"].upper(), verdict.texts["sentence"]]
        lines += [f"{name}: {value:,}" for name, value in verdict.numbers.items()]
        # TensorBoard reads texts as Markdown; an indented block is shown as it is.
        tensor = self._tensors.TensorProto(
            dtype=self._types.DT_STRING,
            string_val=["\n".join(f"    {line}" for line in lines).encode()],
        )
        about = self._summaries.SummaryMetadata(
            plugin_data=self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        )
        tag = f"verdict/vs {verdict.texts['against']}"
        return self._event(tag, at, tensor=tensor, metadata=about)

    def _event(self, tag: str, at: Point, **value: Any) -> bytes:
        summary = self._summaries.Summary(value=[self._summaries.Summary.Value(tag=tag, **value)])
        event = self.event(wall_time=at.time, step=at.step, summary=summary)
        encoded: bytes = event.SerializeToString()
        return encoded


def _bins(histogram: Log2Histogram) -> dict[str, Any]:
    """Converts a histogram to the fields of TensorBoard's HistogramProto.

    The x axis of the result is the exponent, with a bucket for each exponent from the lowest
    counted to the highest.
    """
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
