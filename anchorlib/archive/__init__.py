"""Closed runs moved to where there is room: an object store, or another directory.

    archive_run(store, "run1", shelf_at("s3://bucket/prefix")) ─▶ Archived
    make_room(store, shelf, Keep(most=10 << 30))               ─▶ the runs that went here

probing    whether a place keeps conditions of writes
claiming   who puts a rank's objects
endings    whether more may come to a rank, of which others may have parts
rank       one rank: sealed here, put there, compared, marked
run        a run: all of its ranks, its index, and the note that it is archived
index      the run's index, of all ranks together
moved      the note of a run led to where its archive is now
evicting   what of archived runs stays here

A rank is there when its `sealed.json` is: that is put last, where there is none, and speaks of the
size and SHA-256 of every other object. Killed at any moment, an archiver leaves what its next run
finds and does not send again.
"""

from anchorlib.archive.endings import is_spread, open_ranks
from anchorlib.archive.evicting import Keep, leaving, make_room
from anchorlib.archive.moved import lead_elsewhere
from anchorlib.archive.probing import HASTY, checked_shelf
from anchorlib.archive.run import (
    Archived,
    Planned,
    archive_run,
    archive_served,
    plan_archive,
    plan_served,
)
from anchorlib.store.objects import Shelf, shelf_at

__all__ = [
    "HASTY",
    "Archived",
    "Keep",
    "Planned",
    "Shelf",
    "archive_run",
    "archive_served",
    "checked_shelf",
    "is_spread",
    "lead_elsewhere",
    "leaving",
    "make_room",
    "open_ranks",
    "plan_archive",
    "plan_served",
    "shelf_at",
]
