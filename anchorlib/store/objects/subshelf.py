"""A folder of a shelf as a shelf of its own."""

from __future__ import annotations

from anchorlib.store.locations import Location, Within
from anchorlib.store.objects.shelf import Held, Shelf

__all__ = ["ShelfWithin"]


class ShelfWithin:
    """A folder of another shelf as a shelf, whose keys begin below that folder; see `Shelf`."""

    def __init__(self, outer: Shelf, folder: str) -> None:
        self._outer = outer
        self._prefix = f"{folder.strip('/')}/"

    @property
    def place(self) -> str:
        """See `Shelf`."""
        return f"{self._outer.place}/{self._prefix}".rstrip("/")

    @property
    def location(self) -> Location:
        """See `Shelf`."""
        return Within(self._outer.location, self._prefix)

    def held(self, prefix: str) -> dict[str, Held]:
        """See `Shelf`."""
        cut = len(self._prefix)
        return {key[cut:]: one for key, one in self._outer.held(self._prefix + prefix).items()}

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """See `Shelf`."""
        return self._outer.fetch(self._prefix + key)

    def put(self, key: str, data: bytes) -> None:
        """See `Shelf`."""
        self._outer.put(self._prefix + key, data)

    def create(self, key: str, data: bytes) -> bool:
        """See `Shelf`."""
        return self._outer.create(self._prefix + key, data)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """See `Shelf`."""
        return self._outer.swap(self._prefix + key, data, tag)

    def remove(self, key: str) -> None:
        """See `Shelf`."""
        self._outer.remove(self._prefix + key)

    def is_same(self, key: str, held: Held, data: bytes) -> bool:
        """See `Shelf`."""
        return self._outer.is_same(self._prefix + key, held, data)
