"""Runs as a whole: found by a name or URL, removed, renamed, handed to other processes."""

from anchorlib.store.runs.archived_files import ArchivedRuns
from anchorlib.store.runs.rank_handle import (
    RankHandle,
    asked,
    packed_rows,
    rank_handle,
    unpacked_rows,
)
from anchorlib.store.runs.removing import (
    evict_run,
    forget_run,
    newest_ns,
    note_archived,
    note_moved,
    place_run,
    remove_rank,
    remove_run,
    rename_run,
    written_ns,
)
from anchorlib.store.runs.run_lookup import (
    FoundRun,
    archived_alone,
    as_zarr,
    find_run,
    has_run,
    list_runs,
)
from anchorlib.store.runs.store_lookup import DEFAULT_STORE, locate_store
from anchorlib.store.runs.tensor_tree import TensorTree, rows_together

__all__ = [
    "DEFAULT_STORE",
    "ArchivedRuns",
    "FoundRun",
    "RankHandle",
    "TensorTree",
    "archived_alone",
    "as_zarr",
    "asked",
    "evict_run",
    "find_run",
    "forget_run",
    "has_run",
    "list_runs",
    "locate_store",
    "newest_ns",
    "note_archived",
    "note_moved",
    "packed_rows",
    "place_run",
    "rank_handle",
    "remove_rank",
    "remove_run",
    "rename_run",
    "rows_together",
    "unpacked_rows",
    "written_ns",
]
