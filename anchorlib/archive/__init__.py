"""Archiving of closed runs: copied to an object store or another directory, then removed here.

    archive_run(store, "run1", shelf_at("s3://bucket/prefix")) ─▶ Archived
    make_room(store, shelf, Keep(most=10 << 30))               ─▶ bytes freed, by run

A shelf is a place for archived objects: a prefix of a bucket, or a directory.

probing        whether a store honours conditional writes
claiming       which archiver may put a rank's objects
endings        whether a rank has ended, also if other collectors hold parts of it
rank           one rank: sealed (compressed), put into the archive, compared, marked as whole
run            a run: all of its ranks, its index, and the note that it is archived
index          the run's index, over all of its ranks
archive_place  the note of a run changed to the place where its archive is now
evicting       which archived runs keep their files on this machine

A rank is archived when its `sealed.json` is in the archive. This object is put last, never over
another `sealed.json`, and names the size and SHA-256 of the rank's other objects. An archiver may
be killed at any moment: the next archiver finds the objects that are there, and does not send them
again.
"""

from anchorlib.archive.archive_place import update_archive_place
from anchorlib.archive.endings import NotEndedError, is_spread, open_ranks
from anchorlib.archive.evicting import Keep, leaving, make_room
from anchorlib.archive.probing import HASTY, checked_shelf
from anchorlib.archive.run import (
    ArchivePlan,
    ArchiveResult,
    archive_run,
    archive_served,
    plan_archive,
    plan_served,
)
from anchorlib.store.objects import Shelf, shelf_at

__all__ = [
    "HASTY",
    "ArchivePlan",
    "ArchiveResult",
    "Keep",
    "NotEndedError",
    "Shelf",
    "archive_run",
    "archive_served",
    "checked_shelf",
    "is_spread",
    "leaving",
    "make_room",
    "open_ranks",
    "plan_archive",
    "plan_served",
    "shelf_at",
    "update_archive_place",
]
