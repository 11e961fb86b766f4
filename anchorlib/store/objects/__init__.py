"""Runs in an object store: S3, Google Cloud Storage, Azure; and folders that are read like one.

A shelf is what archives are written to: objects by key, written with conditions.

address          parses the URL of an object store
connection       a client with the cloud's own variables, its time limits, its errors in one line
object_location  an object store as a location, for reading by key
shelf            the interface that archiving needs of a place for objects
bucket           a prefix of a bucket as a shelf
folder           a directory as a shelf
subshelf         a folder of a shelf as a shelf of its own
shelf_lookup     the shelf or location that a text names
"""

from anchorlib.store.objects.address import is_object_url, parse_object_url
from anchorlib.store.objects.bucket import ObjectShelf
from anchorlib.store.objects.connection import RequestLimits
from anchorlib.store.objects.folder import FolderShelf
from anchorlib.store.objects.object_location import ObjectLocation
from anchorlib.store.objects.shelf import ObjectMetadata, Shelf
from anchorlib.store.objects.shelf_lookup import object_location, shelf_at
from anchorlib.store.objects.subshelf import ShelfWithin

__all__ = [
    "FolderShelf",
    "ObjectLocation",
    "ObjectMetadata",
    "ObjectShelf",
    "RequestLimits",
    "Shelf",
    "ShelfWithin",
    "is_object_url",
    "object_location",
    "parse_object_url",
    "shelf_at",
]
