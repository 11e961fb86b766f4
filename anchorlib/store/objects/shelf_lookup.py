"""Finds the place for archives that a text names, as a shelf (to write) or a location (to read)."""

from __future__ import annotations

from pathlib import Path

from anchorlib.errors import OptionError
from anchorlib.names import shown_address
from anchorlib.store.objects.address import ObjectAddress, is_object_url, parse_object_url
from anchorlib.store.objects.bucket import ObjectShelf
from anchorlib.store.objects.connection import RequestLimits, connected
from anchorlib.store.objects.folder import FolderShelf
from anchorlib.store.objects.object_location import ObjectLocation
from anchorlib.store.objects.shelf import Shelf

__all__ = ["object_location", "shelf_at"]


def object_location(address: ObjectAddress) -> ObjectLocation:
    """Return the location of a bucket and prefix, for reading; no request is made yet.

    Raises MissingExtraError where obstore is not installed, OptionError where the environment names
    an endpoint that is refused.
    """
    return ObjectLocation(connected(address), address)


def shelf_at(text: str, limits: RequestLimits | None = None) -> Shelf:
    """Return the place for archives that a text names: s3://…, gs://…, az://…, or a directory.

    No request is made yet, and no directory made. limits: how long an object store may take; None
    for the default limits.

    Raises OptionError for any other URL, and for an endpoint in the environment that is refused;
    MissingExtraError where obstore is needed and not installed.
    """
    if is_object_url(text):
        address = parse_object_url(text)
        # Each object is sent with its SHA-256, so the store refuses one that arrives damaged.
        checked = {"checksum_algorithm": "SHA256"} if address.scheme == "s3" else {}
        return ObjectShelf(connected(address, limits, config=checked), address)
    if "://" in text:
        raise OptionError(
            f"{shown_address(text)} is no archive; give s3://bucket/prefix, gs://…, az://… or a "
            "directory"
        )
    return FolderShelf(Path(text))
