"""The zarr hierarchy that runs are kept in: one writing hand, and readers that trust it.

Writer      puts records of one rank down, so that what is committed survives kill -9
RunReader   committed rows of all ranks, also while they are written
RankAudit   what of a rank does not fit its checksums
stored_fingerprint   what records are, to be compared with those that somebody holds
Location    where bytes are read from: a directory, or a collector

    find_run("run1", "anchors")  ─▶ FoundRun(name, location) ─▶ RunReader(location, name)
"""

from anchorlib.store.audit import RankAudit
from anchorlib.store.author import run_author
from anchorlib.store.beneath import names_beneath, open_beneath
from anchorlib.store.budget import RunFilesError, RunRoom
from anchorlib.store.catalog import SeriesEntry
from anchorlib.store.documents import run_faults
from anchorlib.store.finding import (
    DEFAULT_STORE,
    FoundRun,
    as_zarr,
    find_run,
    list_runs,
    locate_store,
)
from anchorlib.store.layout import run_directory
from anchorlib.store.location import CollectorLocation, LocalLocation, Location, Within
from anchorlib.store.lock import RankLock, holder, is_locked
from anchorlib.store.making import check_writable, make_store
from anchorlib.store.prints import stored_fingerprint
from anchorlib.store.rank import RankReader
from anchorlib.store.reader import RunReader
from anchorlib.store.register import check_series
from anchorlib.store.tensors import TensorTree
from anchorlib.store.writer import Writer

__all__ = [
    "DEFAULT_STORE",
    "CollectorLocation",
    "FoundRun",
    "LocalLocation",
    "Location",
    "RankAudit",
    "RankLock",
    "RankReader",
    "RunFilesError",
    "RunReader",
    "RunRoom",
    "SeriesEntry",
    "TensorTree",
    "Within",
    "Writer",
    "as_zarr",
    "check_series",
    "check_writable",
    "find_run",
    "holder",
    "is_locked",
    "list_runs",
    "locate_store",
    "make_store",
    "names_beneath",
    "open_beneath",
    "run_author",
    "run_directory",
    "run_faults",
    "stored_fingerprint",
]
