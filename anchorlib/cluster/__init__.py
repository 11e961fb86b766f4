"""Queries of runs computed by the workers of a dask cluster; only this package runs dask workers.

    with Cluster("tcp://10.0.0.1:8786") as cluster:
        list(cluster.map(function, parts))      # what map(function, parts) gives, to the bit

A part of a query travels as names and numbers (which run, which rank, which rows), and each worker
opens the run itself: no values, no open files and no credentials go through the scheduler.
"""

from anchorlib.cluster.address import checked_address, quiet
from anchorlib.cluster.cluster import Cluster

__all__ = ["Cluster", "checked_address", "quiet"]
