"""Questions about runs, answered by the workers of a dask cluster: the only dask.

    with Cluster("tcp://10.0.0.1:8786") as cluster:
        list(cluster.map(function, parts))      # what map(function, parts) gives, to the bit

A part travels as words (which run, which rank, which rows), and each worker opens the run itself:
no values, no open files and no credentials go through the scheduler.
"""

from anchorlib.cluster.address import checked_address, quiet
from anchorlib.cluster.cluster import Cluster
from anchorlib.cluster.tasks import Far, Near

__all__ = ["Cluster", "Far", "Near", "checked_address", "quiet"]
