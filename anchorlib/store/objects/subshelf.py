"""A folder of a shelf (a place for archived objects) as a shelf of its own."""

from __future__ import annotations

from anchorlib.store.locations import Location, Within
from anchorlib.store.objects.shelf import ObjectMetadata, Shelf

__all__ = ["ShelfWithin"]


class ShelfWithin:
    """A folder of another shelf as a `Shelf`, whose keys are relative to that folder."""

    def __init__(self, outer: Shelf, folder: str) -> None:
        self._outer = outer
        self._prefix = f"{folder.strip('/')}/"

    @property
    def place(self) -> str:
        """The address of the folder, as `--store` takes it; it holds no secret."""
        return f"{self._outer.place}/{self._prefix}".rstrip("/")

    @property
    def location(self) -> Location:
        """The location of the folder's objects, for reading."""
        return Within(self._outer.location, self._prefix)

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        """Return {key: size and tag} of all objects below the folder `prefix`, "" for all."""
        cut = len(self._prefix)
        return {key[cut:]: one for key, one in self._outer.held(self._prefix + prefix).items()}

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return (the bytes of an object, its tag for `swap`); None for no object."""
        return self._outer.fetch(self._prefix + key)

    def put(self, key: str, data: bytes) -> None:
        """Store `data` as the object at `key`; an object with that key is replaced."""
        self._outer.put(self._prefix + key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Store `data` as the object at `key` unless there is an object already.

        Return False where that object has other bytes, otherwise True.
        """
        return self._outer.create(self._prefix + key, data)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Store `data` as the object at `key` if the object still has the tag `tag`.

        `fetch` returned the tag. Return whether the object has the bytes of `data` now: True also
        where it already had them, False where it was changed otherwise or is gone.
        """
        return self._outer.swap(self._prefix + key, data, tag)

    def remove(self, key: str) -> None:
        """Remove an object; do nothing where there is none."""
        self._outer.remove(self._prefix + key)

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        """Return whether the object at `key` has exactly the bytes of `data`.

        held: the object's size and tag as `held` returned them. Where the size differs, the answer
            is False; where the tag cannot tell, the object is read.
        """
        return self._outer.is_same(self._prefix + key, held, data)
