"""The option `--dask`: an answer is computed in this process, or by workers of a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorlib.cluster import Cluster
    from anchorlib.reading import MapFunction

__all__ = ["spread_over"]


@contextmanager
def spread_over(address: str | None) -> Iterator[MapFunction]:
    """A context that yields the map function by which a command computes its answer.

    The map function of a cluster connects to the cluster at its first call: before that, a command
    opens its runs, so that a wrong name is reported at once. Raises MissingExtraError where dask is
    not installed, OptionError for an invalid address. The yielded map function raises ClusterError
    where the cluster cannot be reached or fails.

    address: that of a dask scheduler, whose workers make the calls; None yields Python's `map`.
    """
    if address is None:
        yield map
        return
    from anchorlib.cluster import checked_address, quiet

    with quiet(), ExitStack() as held:
        yield _Late(checked_address(address), held)


class _Late:
    """The map function of a dask cluster, which connects to the cluster at its first call.

    held: the exit stack of `spread_over`, which closes the connection when that context ends.
    """

    def __init__(self, address: str, held: ExitStack) -> None:
        self._address = address
        self._held = held
        self._cluster: Cluster | None = None

    def __call__(self, function: Any, parts: Any) -> Iterator[Any]:
        from anchorlib.cluster import Cluster

        if self._cluster is None:
            self._cluster = self._held.enter_context(Cluster(self._address))
        return self._cluster.map(function, parts)
