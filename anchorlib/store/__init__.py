"""The zarr hierarchy that runs are kept in: one writing hand, and readers that trust it.

Writer      puts records of one rank down, so that what is committed survives kill -9
RunReader   committed rows of all ranks, also while they are written
RankAudit   what of a rank does not fit its checksums
stored_fingerprint   what records are, to be compared with those that somebody holds
Location    where bytes are read from: a directory, a collector, or an object store
remove_run, rename_run    a run as a whole, which no living process writes

    find_run("run1", "anchors")  ─▶ FoundRun(name, location) ─▶ RunReader(location, name)
"""

from anchorlib.store.archived import ArchiveNote, note_of, noted_runs
from anchorlib.store.aside import disk_bytes, finish_removals, waiting_removals
from anchorlib.store.asked import Pin, asked, packed_rows, pin_of, told_rows
from anchorlib.store.audit import RankAudit
from anchorlib.store.author import run_author
from anchorlib.store.beneath import names_beneath, open_beneath
from anchorlib.store.budget import RunFilesError, RunRoom
from anchorlib.store.catalog import SeriesEntry
from anchorlib.store.documents import run_faults
from anchorlib.store.finding import (
    DEFAULT_STORE,
    FoundRun,
    archived_alone,
    archived_location,
    as_zarr,
    find_run,
    has_run,
    list_runs,
    locate_store,
)
from anchorlib.store.holding import HeldRank, held_ranks, is_written
from anchorlib.store.layout import INDEX as RUN_INDEX
from anchorlib.store.layout import part_of, rank_of, run_directory
from anchorlib.store.listing import PartKey, listed_parts, listed_ranks
from anchorlib.store.location import CollectorLocation, LocalLocation, Location, Within
from anchorlib.store.lock import RankLock, holder, is_locked
from anchorlib.store.making import check_writable, make_store, unmade_store
from anchorlib.store.objects import ObjectLocation, is_object_url
from anchorlib.store.parts import Part, is_whole
from anchorlib.store.prints import stored_fingerprint
from anchorlib.store.rank import RankReader
from anchorlib.store.reader import RunReader, end_copy, open_parts
from anchorlib.store.register import check_series
from anchorlib.store.remnants import Remnants
from anchorlib.store.removing import (
    evict_run,
    forget_run,
    newest_ns,
    place_run,
    remove_rank,
    remove_run,
    rename_run,
    written_ns,
)
from anchorlib.store.republishing import republish, unpublished
from anchorlib.store.rereading import stored_records
from anchorlib.store.rowchecks import RowChecks
from anchorlib.store.run_index import MergedSeries, RunFigures, common_shape
from anchorlib.store.seal import (
    FolderTarget,
    RankFigures,
    Sealed,
    SealedObject,
    SeriesFigures,
    Target,
    is_unfinished,
    rank_location,
    read_index,
    read_sealed,
    seal,
)
from anchorlib.store.sessions import has_ended
from anchorlib.store.several import SeveralCollectors
from anchorlib.store.tensors import TensorTree, rows_together
from anchorlib.store.visible import visible_rows
from anchorlib.store.writer import Writer

__all__ = [
    "DEFAULT_STORE",
    "RUN_INDEX",
    "ArchiveNote",
    "CollectorLocation",
    "FolderTarget",
    "FoundRun",
    "HeldRank",
    "LocalLocation",
    "Location",
    "MergedSeries",
    "ObjectLocation",
    "Part",
    "PartKey",
    "Pin",
    "RankAudit",
    "RankFigures",
    "RankLock",
    "RankReader",
    "Remnants",
    "RowChecks",
    "RunFigures",
    "RunFilesError",
    "RunReader",
    "RunRoom",
    "Sealed",
    "SealedObject",
    "SeriesEntry",
    "SeriesFigures",
    "SeveralCollectors",
    "Target",
    "TensorTree",
    "Within",
    "Writer",
    "archived_alone",
    "archived_location",
    "as_zarr",
    "asked",
    "check_series",
    "check_writable",
    "common_shape",
    "disk_bytes",
    "end_copy",
    "evict_run",
    "find_run",
    "finish_removals",
    "forget_run",
    "has_ended",
    "has_run",
    "held_ranks",
    "holder",
    "is_locked",
    "is_object_url",
    "is_unfinished",
    "is_whole",
    "is_written",
    "list_runs",
    "listed_parts",
    "listed_ranks",
    "locate_store",
    "make_store",
    "names_beneath",
    "newest_ns",
    "note_of",
    "noted_runs",
    "open_beneath",
    "open_parts",
    "packed_rows",
    "part_of",
    "pin_of",
    "place_run",
    "rank_location",
    "rank_of",
    "read_index",
    "read_sealed",
    "remove_rank",
    "remove_run",
    "rename_run",
    "republish",
    "rows_together",
    "run_author",
    "run_directory",
    "run_faults",
    "seal",
    "stored_fingerprint",
    "stored_records",
    "told_rows",
    "unmade_store",
    "unpublished",
    "visible_rows",
    "waiting_removals",
    "written_ns",
]
