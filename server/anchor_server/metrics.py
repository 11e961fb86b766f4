"""Prometheus metrics: the collector's `CollectorCounters`, served at `/metrics` on a second port.

No label holds a tensor's name: a run may have any number of tensors, and each label value costs
Prometheus memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchor_server.counters import SECONDS, ArchiveTally, CollectorCounters
from anchorlib.errors import MissingExtraError, OptionError
from anchorlib.wire import is_loopback, parse_address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["MetricsPort"]


class MetricsPort:
    """An HTTP server that answers `GET /metrics` on `bind` (host:port) until it is closed.

    It serves from the moment when it is made. Raises OptionError where `bind` cannot be listened
    on, and without `insecure` where other machines can reach it; MissingExtraError without the
    package prometheus-client.

    tally: the counters to serve. store: the collector's directory.
    insecure: whether other machines may reach the port.

    address: host:port, with the port that was picked where `bind` has port 0.
    """

    def __init__(
        self, bind: str, tally: CollectorCounters, store: Path, *, insecure: bool = False
    ) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MissingExtraError(
                "--metrics-bind needs prometheus-client: pip install 'anchorlib[metrics]'"
            ) from None
        host, port = _checked(bind, insecure=insecure)
        registry = prometheus_client.CollectorRegistry()
        registry.register(_Families(tally, store))
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, host, registry)
        except (OSError, UnicodeError) as error:  # the latter for a name that no machine can have
            reason = getattr(error, "strerror", None) or error
            raise OptionError(f"cannot listen on {bind}: {reason}") from error
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stops the HTTP server and closes the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Families:
    """A collector in Prometheus's sense: turns the counters into metrics, anew at each request."""

    def __init__(self, tally: CollectorCounters, store: Path) -> None:
        self._tally = tally
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yields all metric families; prometheus-client calls this at each request."""
        tally = self._tally
        yield _counter("records", "records by result", "result", dict(tally.records))
        yield _counter("bytes", "bytes of values stored", "", {"": tally.nbytes})
        yield _counter(
            "crc_errors",
            "values and messages that did not fit their checksum",
            "",
            {"": tally.damaged},
        )
        yield _counter("refusals", "calls refused", "reason", dict(tally.refused))
        yield _counter("dropped", "observations left out", "reason", dict(tally.dropped))
        yield _gauge("streams", "streams being written", {(): tally.streams}, ())
        states = tally.roster.states()
        acked = {(one.run, str(one.rank)): one.committed for one in states}
        yield _gauge("acked_seq", "records in the store", acked, ("run", "rank"))
        # One value for all streams: a label for each run would grow without end.
        lag = max((one.lag or 0.0 for one in states), default=0.0)
        yield _gauge("lag_seconds", "longest from a record to its commit", {(): lag}, ())
        backlog = sum(one.backlog or 0 for one in states)
        yield _gauge("backlog_records", "records that wait with their writers", {(): backlog}, ())
        yield from _archive(tally.archive)
        with suppress(OSError):
            free = shutil.disk_usage(self._store).free
            yield _gauge("disk_free_bytes", "free on the store's disk", {(): free}, ())
        yield _commits(tally)


def _archive(archive: ArchiveTally | None) -> Iterator[Metric]:
    if archive is None:
        return
    yield _counter("archived_runs", "runs put into the archive", "", {"": archive.runs})
    yield _counter("archived_bytes", "bytes of them there", "", {"": archive.bytes})
    yield _counter("archive_failures", "attempts that failed", "", {"": archive.failures})
    yield _counter("evicted_bytes", "freed of runs that are archived", "", {"": archive.freed})
    failing = {(): len(archive.failing)}
    yield _gauge("archive_failing_runs", "of these, that could not be archived", failing, ())
    away = {(): int(bool(archive.away))}
    yield _gauge("archive_away", "1 while nothing can be archived", away, ())
    waiting = {(): archive.waiting}
    yield _gauge("archive_waiting_runs", "closed runs that are not archived yet", waiting, ())


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(f"anchor_{name}", text, labels=[label] if label else [])
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    return family


def _gauge(name: str, text: str, values: Mapping[Any, float], labels: tuple[str, ...]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(f"anchor_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _commits(tally: CollectorCounters) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily("anchor_commit_seconds", "seconds that a commit took")
    ends = [*map(str, SECONDS), "+Inf"]
    buckets = list(zip(ends, map(float, accumulate(tally.commits)), strict=True))
    family.add_metric([], buckets, tally.commit_seconds)
    return family


def _checked(bind: str, *, insecure: bool) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    if port != "0":
        parse_address(f"grpc://{bind}")  # an address is checked, and its error worded, there
    if not host or not (is_loopback(host) or insecure):
        raise OptionError(
            f"--metrics-bind {bind}: metrics are for this machine alone; write 127.0.0.1:PORT, or "
            "say --insecure"
        )
    return host.strip("[]"), int(port)
