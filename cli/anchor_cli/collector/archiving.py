"""The options of `anchor serve` about the archive that closed runs are moved to."""

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
    """Parses the archive options; returns None where closed runs stay in the store.

    The archive is not contacted, and no folder is made. Raises OptionError for an invalid value and
    for the other options without `--archive`, MissingExtraError where the package for the archive's
    kind of URL is not installed.

    place: the value of `--archive`; None without that option.
    after, keep_local: the values of `--archive-after` and `--keep-local`.
    without_conditions: whether `--without-conditional-writes` is given.
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
            raise OptionError(f"{option} needs an archive: add --archive PLACE")
        return None
    return Archiving(shelf_at(place), seconds, keep, without_conditions)


def try_archive(place: str, *, without_conditions: bool) -> None:
    """Checks that the archive can be used: writes a small file there and removes it.

    Raises OptionError or StoreError where the archive cannot be used. Where the archive does not
    answer within seconds, only logs a warning: the collector starts all the same, and archives once
    the archive answers.

    without_conditions: also accept an object store that cannot refuse to overwrite.
    """
    from anchorlib.archive import HASTY, checked_shelf, shelf_at
    from anchorlib.errors import CollectorError

    try:
        checked_shelf(shelf_at(place, HASTY), without_conditions=without_conditions)
    except CollectorError as error:
        logging.getLogger("anchor_server").warning("nothing is archived yet: %s", error)
