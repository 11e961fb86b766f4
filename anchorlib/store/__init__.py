"""The zarr hierarchy that runs are kept in: one writing hand, and readers that trust it.

Writer      puts records of one rank down, so that what is committed survives kill -9
RunReader   committed rows of all ranks, also while they are written
RankAudit   what of a rank does not fit its checksums
stored_fingerprint   what records are, to be compared with those that somebody holds
Location    where bytes are read from: a directory, a collector, or an object store
remove_run, rename_run    a run as a whole, which no living process writes

format      what lies where, and what each document says    read    runs as readers find them
locations   where bytes are read from                       write   the writing hand
disk        a store's directory, shared by processes        seal    ranks that never change again
stored      arrays of one rank, read back and checked       check   what does not fit its checksums
objects     object stores, and folders used as such         runs    runs found, removed, renamed

    find_run("run1", "anchors")  ─▶ FoundRun(name, location) ─▶ RunReader(location, name)
"""

from anchorlib.store.check import RankAudit, republish, run_faults, unpublished
from anchorlib.store.disk import (
    ArchiveNote,
    HeldRank,
    RankLock,
    RunFilesError,
    RunRoom,
    check_writable,
    disk_bytes,
    finish_removals,
    held_ranks,
    holder,
    is_locked,
    is_written,
    make_store,
    note_of,
    noted_runs,
    run_author,
    unmade_store,
    waiting_removals,
)
from anchorlib.store.format import INDEX as RUN_INDEX
from anchorlib.store.format import Part, SeriesEntry, rank_of, run_directory
from anchorlib.store.locations import (
    CollectorLocation,
    LocalLocation,
    Location,
    SeveralCollectors,
    Within,
    listed_parts,
    listed_ranks,
    names_beneath,
    open_beneath,
)
from anchorlib.store.objects import is_object_url
from anchorlib.store.read import (
    MergedSeries,
    RankReader,
    Remnants,
    RunFigures,
    RunReader,
    common_shape,
    end_copy,
    stored_fingerprint,
    stored_records,
)
from anchorlib.store.runs import (
    DEFAULT_STORE,
    FoundRun,
    Pin,
    TensorTree,
    archived_location,
    as_zarr,
    asked,
    evict_run,
    find_run,
    has_run,
    list_runs,
    locate_store,
    packed_rows,
    pin_of,
    place_run,
    remove_rank,
    remove_run,
    rename_run,
    rows_together,
    told_rows,
    written_ns,
)
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
from anchorlib.store.stored import RowChecks, visible_rows
from anchorlib.store.write import Writer, check_series

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
    "Part",
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
    "has_run",
    "held_ranks",
    "holder",
    "is_locked",
    "is_object_url",
    "is_unfinished",
    "is_written",
    "list_runs",
    "listed_parts",
    "listed_ranks",
    "locate_store",
    "make_store",
    "names_beneath",
    "note_of",
    "noted_runs",
    "open_beneath",
    "packed_rows",
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
