"""The interface that archiving needs of a place for objects, which is called a shelf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anchorlib.store.locations import Location

__all__ = ["ObjectMetadata", "Shelf"]


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """Size and tag of an object in an archive, as a listing shows it.

    tag: a text of the store that changes whenever the object does (an ETag).
    """

    size: int
    tag: str


class Shelf(Protocol):
    """A place where archives are stored as objects by key, such as a prefix of a bucket.

    The tag of an object is a text that changes whenever its bytes do, such as an ETag; `held` and
    `fetch` may return different ones. Each method does what it promises even where the store's
    answer to a request was lost.
    """

    @property
    def place(self) -> str:
        """The address of this place, as `--store` takes it; it holds no secret."""
        ...

    @property
    def location(self) -> Location:
        """The location of the objects, for reading."""
        ...

    def held(self, prefix: str) -> dict[str, ObjectMetadata]:
        """Return size and tag of all objects below the folder `prefix`, by their keys.

        Raises CollectorError or StoreError where the shelf cannot be listed.
        """
        ...

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return the bytes of an object and its tag for `swap`; None for no object."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Store `data` as the object at `key`; an object with that key is replaced."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Store `data` as the object at `key` unless there is an object already.

        Return False where that object has other bytes, otherwise True.
        """
        ...

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Replace the object at `key` if it still has this tag; return whether it has `data` now.

        So the result is True also where the object already had these bytes, and False where it was
        changed otherwise or is gone.
        """
        ...

    def remove(self, key: str) -> None:
        """Remove an object; do nothing where there is none."""
        ...

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        """Return whether the object at `key` has exactly the bytes of `data`.

        held: the object as a listing showed it. Where its size differs, the answer is False; where
            its tag cannot tell, the object is read.
        """
        ...
