"""Computes an answer in this process, or spread over the workers of a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorlib.cluster import Cluster
    from anchorlib.reading import Over

__all__ = ["spread_over"]


@contextmanager
def spread_over(address: str | None) -> Iterator[Over]:
    """Python's `map`, or for a scheduler's address the cluster's `map`, while the block lasts.

    Connects to the cluster at the first call of `map`: before that the runs are opened, so that a
    wrong name is reported at once. Raises MissingExtraError, OptionError; the cluster's `map` also
    raises ClusterError.
    """
    if address is None:
        yield map
        return
    from anchorlib.cluster import checked_address, quiet

    with quiet(), ExitStack() as held:
        yield _Late(checked_address(address), held)


class _Late:
    """The `map` of a cluster, which connects to the cluster at the first call."""

    def __init__(self, address: str, held: ExitStack) -> None:
        self._address = address
        self._held = held
        self._cluster: Cluster | None = None

    def __call__(self, function: Any, parts: Any) -> Iterator[Any]:
        from anchorlib.cluster import Cluster

        if self._cluster is None:
            self._cluster = self._held.enter_context(Cluster(self._address))
        return self._cluster.map(function, parts)
