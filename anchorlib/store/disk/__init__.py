"""The directory of a store as processes share it: locks, limits of size, files renamed into place.

`format` says what lies where in it, `write` what is written into a rank.
"""

from anchorlib.store.disk.archived import (
    ArchiveNote,
    RankNote,
    forget,
    note_of,
    noted_runs,
    write_note,
)
from anchorlib.store.disk.author import document_again, run_author, run_document
from anchorlib.store.disk.full import (
    NO_ROOM,
    REASONS,
    RankQuota,
    RunFilesError,
    RunQuota,
    SizeLimits,
)
from anchorlib.store.disk.gaps import MISFIT, LeftOut
from anchorlib.store.disk.holding import (
    HeldRank,
    drop_locks,
    held_ranks,
    is_written,
    move_locks,
    whole_run,
)
from anchorlib.store.disk.lock import RankLock, holder, is_locked, lock_path
from anchorlib.store.disk.moved_rank import RankDirectoryWatch
from anchorlib.store.disk.node_writer import NodeWriter, sync_directory
from anchorlib.store.disk.removal import (
    delete_aside,
    disk_bytes,
    finish_removals,
    put_aside,
    waiting_removals,
)
from anchorlib.store.disk.store_directory import check_writable, make_store, unmade_store

__all__ = [
    "MISFIT",
    "NO_ROOM",
    "REASONS",
    "ArchiveNote",
    "HeldRank",
    "LeftOut",
    "NodeWriter",
    "RankDirectoryWatch",
    "RankLock",
    "RankNote",
    "RankQuota",
    "RunFilesError",
    "RunQuota",
    "SizeLimits",
    "check_writable",
    "delete_aside",
    "disk_bytes",
    "document_again",
    "drop_locks",
    "finish_removals",
    "forget",
    "held_ranks",
    "holder",
    "is_locked",
    "is_written",
    "lock_path",
    "make_store",
    "move_locks",
    "note_of",
    "noted_runs",
    "put_aside",
    "run_author",
    "run_document",
    "sync_directory",
    "unmade_store",
    "waiting_removals",
    "whole_run",
    "write_note",
]
