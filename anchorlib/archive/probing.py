"""Finds out, before an archive is written, whether its store honours conditional writes.

A conditional write fails where an object exists already, or has changed (If-None-Match, If-Match).
"""

from __future__ import annotations

import os
from typing import Final

from anchorlib.errors import OptionError
from anchorlib.names import escape
from anchorlib.store.locations import Location
from anchorlib.store.objects import ObjectMetadata, RequestLimits, Shelf

__all__ = ["HASTY", "checked_shelf"]

HASTY: Final = RequestLimits(request=5.0, connect=3.0, again=0, retrying=5.0)
"""Time limits for a caller that has to know within seconds whether a store answers."""


def checked_shelf(shelf: Shelf, *, without_conditions: bool = False) -> Shelf:
    """Return the shelf (place for archives), after a test that it honours conditional writes.

    The test stores a small object, tries to replace it under conditions that do not hold and under
    one that does, and removes it.

    without_conditions: accept a store that ignores conditions. For such a store, another shelf is
        returned, which looks at the store before it writes. The caller then vouches that nobody
        else archives into the store: two archivers could overwrite each other's objects.

    Raises OptionError for a store that ignores conditions, unless `without_conditions` is set, and
    CollectorError for a store that does not answer.
    """
    if _keeps_conditions(shelf):
        return shelf
    if without_conditions:
        return _Unconditional(shelf)
    raise OptionError(
        f"{escape(shelf.place)} does not keep conditions of writes (If-None-Match): two archivers "
        "could overwrite each other there; say --without-conditional-writes where nobody else "
        "archives into it"
    )


def _keeps_conditions(shelf: Shelf) -> bool:
    key = f"anchor-probe-{os.urandom(8).hex()}"
    try:
        shelf.put(key, b"first")
        stored = shelf.fetch(key)
        tag = stored[1] if stored is not None else ""
        if not tag or shelf.create(key, b"second"):
            return False
        if not shelf.swap(key, b"third", tag):
            return False
        return not shelf.swap(key, b"fourth", tag)
    finally:
        shelf.remove(key)


class _Unconditional:
    """A place for archives on a store that ignores conditional writes: it looks first, then writes.

    Another archiver may write between the look and the write, and be overwritten.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    @property
    def place(self) -> str:
        return self._shelf.place

    @property
    def location(self) -> Location:
        return self._shelf.location

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        return self._shelf.held(prefix)

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        return self._shelf.fetch(key)

    def put(self, key: str, data: bytes) -> None:
        self._shelf.put(key, data)

    def create(self, key: str, data: bytes) -> bool:
        stored = self._shelf.fetch(key)
        if stored is None:
            self._shelf.put(key, data)
        return stored is None or stored[0] == data

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        stored = self._shelf.fetch(key)
        if stored is None or stored[1] != tag:
            return stored is not None and stored[0] == data
        self._shelf.put(key, data)
        return True

    def remove(self, key: str) -> None:
        self._shelf.remove(key)

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        return self._shelf.is_same(key, held, data)
