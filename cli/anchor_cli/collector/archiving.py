"""What `anchor serve` is told of an archive."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anchor_cli.arguments import parse_keep, parse_seconds

if TYPE_CHECKING:
    from anchor_server import Archiving

__all__ = ["ARCHIVE_AFTER", "archiving", "try_archive"]

ARCHIVE_AFTER = "60s"


def archiving(
    place: str | None,
    after: str,
    keep_local: str,
    without_conditions: bool,  # noqa: FBT001  # an option's
) -> Archiving | None:
    """Where closed runs go, None where they stay; nothing is asked of the archive, nothing made.

    Raises OptionError, MissingExtraError.
    """
    from anchor_server import Archiving
    from anchorlib.archive import shelf_at
    from anchorlib.errors import OptionError

    keep = parse_keep(keep_local, "--keep-local")
    seconds = parse_seconds(after, "--archive-after")
    if place is None:
        given = {
            "--archive-after": after != ARCHIVE_AFTER,
            "--keep-local": keep_local != "all",
            "--without-conditional-writes": without_conditions,
        }
        for option in (name for name, is_given in given.items() if is_given):
            raise OptionError(f"{option} is of runs that are archived: give --archive URL, too")
        return None
    return Archiving(shelf_at(place), seconds, keep, without_conditions)


def try_archive(place: str, *, without_conditions: bool) -> None:
    """Puts something small there and removes it.

    An archive that cannot be used is refused with OptionError or StoreError; of one that does not
    answer within seconds the log says so, and it is tried again later: collecting does not wait.
    """
    from anchorlib.archive import HASTY, checked_shelf, shelf_at
    from anchorlib.errors import CollectorError

    try:
        checked_shelf(shelf_at(place, HASTY), without_conditions=without_conditions)
    except CollectorError as error:
        logging.getLogger("anchor_server").warning("nothing is archived yet: %s", error)
