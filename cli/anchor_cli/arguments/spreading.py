"""Who computes an answer: this process, or the workers of a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorlib.reading import Over

__all__ = ["spread_over"]


@contextmanager
def spread_over(address: str | None) -> Iterator[Over]:
    """`map`, or that of the cluster whose scheduler has this address, for as long as the block.

    Raises MissingExtraError, OptionError, ClusterError.
    """
    if address is None:
        yield map
        return
    from anchorlib.cluster import Cluster, quiet

    with quiet(), Cluster(address) as cluster:
        yield cluster.map
