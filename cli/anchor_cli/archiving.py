"""What `anchor serve` is told of an archive."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anchor_cli.amounts import parse_keep, parse_seconds

if TYPE_CHECKING:
    from anchor_server import Archiving

__all__ = ["archiving"]


def archiving(
    place: str | None,
    after: str,
    keep_local: str,
    without_conditions: bool,  # noqa: FBT001  # an option's
) -> Archiving | None:
    """Where closed runs go, None where they stay.

    The archive is tried out at once. One that cannot be used is refused with OptionError or
    MissingExtraError; one that does not answer now is tried again later, for collecting does not
    wait for it.
    """
    from anchor_server import Archiving
    from anchorlib.archive import checked_shelf, shelf_at
    from anchorlib.errors import CollectorError, OptionError

    keep = parse_keep(keep_local, "--keep-local")
    seconds = parse_seconds(after, "--archive-after")
    if place is None:
        if not keep.is_all:
            raise OptionError("--keep-local says what stays of archived runs: give --archive, too")
        return None
    shelf = shelf_at(place)
    try:
        checked_shelf(shelf, without_conditions=without_conditions)
    except CollectorError as error:
        logging.getLogger("anchor_server").warning("nothing is archived yet: %s", error)
    return Archiving(shelf, seconds, keep, without_conditions)
