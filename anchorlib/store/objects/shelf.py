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

    The tag of an object is a text that changes whenever the object's bytes do, such as an ETag.
    `held` and `fetch` may return different tags of an object. A request that is repeated because
    its answer was lost does not change what a method does and returns.
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
        """Return {key: size and tag} of all objects below the folder `prefix`, "" for all.

        Raises CollectorError (an object store) or StoreError (a directory) where the shelf cannot
        be listed.
        """
        ...

    def fetch(self, key: str) -> tuple[bytes, str] | None:
        """Return (the bytes of an object, its tag for `swap`); None for no object."""
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
        """Store `data` as the object at `key` if the object still has the tag `tag`.

        `fetch` returned the tag. Return whether the object has the bytes of `data` now: True also
        where it already had them, False where it was changed otherwise or is gone.
        """
        ...

    def remove(self, key: str) -> None:
        """Remove an object; do nothing where there is none."""
        ...

    def is_same(self, key: str, held: ObjectMetadata, data: bytes) -> bool:
        """Return whether the object at `key` has exactly the bytes of `data`.

        held: the object's size and tag as `held` returned them. Where the size differs, the answer
            is False; where the tag cannot tell, the object is read.
        """
        ...
