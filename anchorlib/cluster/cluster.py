"""A dask cluster used as `map`: answers in the order of the parts, or an error in one line."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from anchorlib.cluster.address import checked_address, distributed
from anchorlib.cluster.tasks import answered, packed, versions
from anchorlib.errors import AnchorError, ClusterError

__all__ = ["Cluster"]

Answer = TypeVar("Answer")
Part = TypeVar("Part")
CONNECT_SECONDS: Final = 3.0
CLOSE_SECONDS: Final = 5.0
PATIENCE_SECONDS = 60.0
"""How long a query waits for a cluster without any worker, or for a silent scheduler."""
LOOK_SECONDS: Final = 1.0  # between checks that the cluster has workers
_log = logging.getLogger(__name__)


class Cluster:
    """A connection to the workers of one dask scheduler, used as a context manager."""

    def __init__(self, address: str) -> None:
        """Connect to the scheduler at `address`: "tcp://host:8786" or "tls://host:8786".

        TLS is set up as dask has it (`distributed.comm.tls` in its configuration). Raises
        MissingExtraError without dask, OptionError for a wrong address, and ClusterError where no
        scheduler answers.
        """
        self.address = checked_address(address)
        self._logged: set[tuple[str, str]] = set()
        self._client = self._connected()

    def _connected(self) -> Any:
        with warnings.catch_warnings():
            # `_compare` says in one line which versions differ; dask's warning has many lines.
            warnings.simplefilter("ignore", distributed().versions.VersionMismatchWarning)
            try:
                return distributed().Client(
                    self.address, timeout=CONNECT_SECONDS, set_as_default=False
                )
            except (OSError, ImportError) as error:
                raise ClusterError(
                    f"no dask scheduler answers at {self.address}: {_line(error)}"
                ) from None

    def map(self, function: Callable[[Part], Answer], parts: Iterable[Part]) -> Iterator[Answer]:
        """Yield the answers of `map(function, parts)` in order, computed by the workers.

        parts: each has the methods of `tasks.Part`, such as a `reading.TaskBlock`. function: has to
            be pure, since a task whose worker died is computed again, and the workers must be able
            to import it.

        Raises the first error in the order of the parts; later parts are then not answered. An
        error of anchorlib is raised as `function` raised it. Any other error of `function`, and
        any reason why the cluster cannot answer, is raised as a ClusterError.
        """
        ours = versions()
        futures = [
            self._client.submit(answered, function, task, ours["anchorlib"], pure=False)
            for task in packed(parts)
        ]
        try:
            while futures:
                answers, theirs = self._result(futures[0])
                del futures[0]  # the cluster may forget the answer
                self._compare(ours, theirs)
                yield from answers
        finally:
            self._forget(futures)

    def close(self) -> None:
        """Disconnect from the cluster, which goes on running."""
        self._quietly(partial(self._client.close, timeout=CLOSE_SECONDS))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, future: Any) -> Any:
        """Wait for the answer of a task, a dask future, and return it.

        Raises ClusterError where the task failed or the cluster is gone, and errors of anchorlib as
        the task raised them.
        """
        lonely_since: float | None = None
        while True:
            try:
                return future.result(timeout=LOOK_SECONDS)
            except AnchorError:
                raise
            except TimeoutError as error:
                if future.status == "error":  # a TimeoutError of the task, not of this call
                    raise self._failed(error) from None
            except Exception as error:  # noqa: BLE001 - a worker may raise anything
                raise self._failed(error) from None
            lonely_since = self._looked(lonely_since)

    def _looked(self, lonely_since: float | None) -> float | None:
        """Check the cluster; return since when it has had no worker, None while it has a worker.

        lonely_since: what the last call returned; times are seconds of `time.monotonic`.
        Raises ClusterError where the cluster has had no worker for PATIENCE_SECONDS, or where the
        scheduler is gone.
        """
        if self._client.status in ("closed", "closing"):
            raise ClusterError(f"the dask scheduler at {self.address} is gone; nothing is answered")
        if self._workers():
            return None
        now = time.monotonic()
        if lonely_since is not None and now - lonely_since >= PATIENCE_SECONDS:
            raise ClusterError(
                f"the dask cluster at {self.address} has had no worker for "
                f"{PATIENCE_SECONDS:.0f} seconds; start one with `dask worker {self.address}`"
            )
        return now if lonely_since is None else lonely_since

    def _workers(self) -> bool:
        """Return whether the cluster has workers.

        Raises ClusterError where the scheduler does not answer.
        """
        client = self._client
        try:
            identity = client.sync(client.scheduler.identity, callback_timeout=PATIENCE_SECONDS)
        except (OSError, AttributeError) as error:  # a scheduler that is gone has no identity
            raise ClusterError(
                f"the dask scheduler at {self.address} does not answer any more: {_line(error)}"
            ) from None
        return bool(identity["workers"])

    def _failed(self, error: Exception) -> ClusterError:
        """Return the ClusterError to raise for a task that failed with another library's error."""
        kind = type(error).__name__
        if isinstance(error, distributed().CancelledError):
            return ClusterError(
                f"the dask scheduler at {self.address} is gone; nothing is answered"
            )
        if isinstance(error, distributed().KilledWorker):
            return ClusterError(
                f"workers of the dask cluster at {self.address} died over the same part again and "
                "again, mostly for want of memory; their logs say why"
            )
        if isinstance(error, ImportError):
            return ClusterError(
                f"a worker of {self.address} lacks what this process has: {_line(error)}; install "
                f"anchorlib {versions()['anchorlib']} there"
            )
        return ClusterError(f"a worker of {self.address} failed: {kind}: {_line(error)}")

    def _compare(self, ours: dict[str, str], theirs: dict[str, str]) -> None:
        """Log the package versions of a worker that differ from this process's, each version once.

        ours, theirs: versions by package.
        """
        other = {(name, theirs[name]) for name in ours if theirs.get(name) != ours[name]}
        if fresh := sorted(other - self._logged):
            self._logged |= other
            _log.warning(
                "workers of %s have %s",
                self.address,
                ", ".join(f"{name} {version} (here {ours[name]})" for name, version in fresh),
            )

    def _forget(self, futures: list[Any]) -> None:
        if futures and self._client.status == "running":
            self._quietly(partial(self._client.cancel, futures))

    def _quietly(self, leave: Callable[[], object]) -> None:
        """Call `leave`, a function that ends something at the cluster; only log its failure.

        The answers have arrived by then, or another error is being raised, which must not be
        hidden.
        """
        try:
            leave()
        except Exception as error:  # noqa: BLE001 - whatever a connection that ends may raise
            _log.debug("leaving %s: %s", self.address, error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
